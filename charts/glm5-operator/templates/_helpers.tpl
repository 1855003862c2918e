{{- define "glm5-operator.labels" -}}
{{ include "glm5-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "glm5-operator.selector" -}}
app.kubernetes.io/name: glm5-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "glm5-operator.name" -}}
{{- if contains "glm5-operator" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-glm5-operator" .Release.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "glm5-operator.serviceAccount" -}}
{{- default (include "glm5-operator.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "glm5-operator.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* What the operator does in namespaces where objects live. */ -}}
{{- define "glm5-operator.rules" -}}
- apiGroups: [glm5.dev]
  resources: [glm5deployments]
  verbs: [get, list, watch]
- apiGroups: [glm5.dev]
  resources: [glm5deployments/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
