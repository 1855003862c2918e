"""What every panel of the dashboards shows of a server and an operator whose figures are known, computed by Prometheus.

Two ranks decode 20 times a second with a batch of 4: a step takes 40 ms, of which rank 0 casts 10 ms and rank 1 20 ms,
and attends 5 ms and 8 ms; steps end 50 ms apart. Two more ranks are missing.
"""

import subprocess

import yaml

from monitoring.check import panel_queries

POD = 'namespace="n",deployment="d",pod="p"'
DEPLOYMENT = 'namespace="n",deployment="d"'
RANKS = (f'{POD},rank="0"', f'{POD},rank="1"')


def grows(series: str, per_15_s: float) -> dict[str, str]:
    """A counter that begins at zero."""
    return {"series": series, "values": f"0+{per_15_s}x40"}


def stays(series: str, value: float) -> dict[str, str]:
    return {"series": series, "values": f"{value}x40"}


def histogram(name: str, labels: str, per_15_s: int, low: float, high: float, total: float = 0) -> list[dict[str, str]]:
    """Durations that all lie between two neighbouring bounds; `total` is their sum."""
    return [
        grows(f'{name}_bucket{{{labels},le="{low}"}}', 0),
        grows(f'{name}_bucket{{{labels},le="{high}"}}', per_15_s),
        grows(f'{name}_bucket{{{labels},le="+Inf"}}', per_15_s),
        grows(f"{name}_sum{{{labels}}}", total),
        grows(f"{name}_count{{{labels}}}", per_15_s),
    ]


SERIES = [
    *(part for rank in RANKS for part in histogram("glm5_decode_step_seconds", rank, 300, 0.025, 0.04, 12)),
    *(part for rank in RANKS for part in histogram("glm5_decode_interval_seconds", rank, 300, 0.04, 0.065, 15)),
    *histogram("glm5_decode_cast_seconds", RANKS[0], 300, 0.0065, 0.01, 3),
    *histogram("glm5_decode_cast_seconds", RANKS[1], 300, 0.015, 0.025, 6),
    *histogram("glm5_decode_attention_seconds", RANKS[0], 300, 0.004, 0.0065, 1.5),
    *histogram("glm5_decode_attention_seconds", RANKS[1], 300, 0.0065, 0.01, 2.4),
    *(grows(f"glm5_decode_cast_bytes_total{{{rank}}}", 15e6) for rank in RANKS),
    *(stays(f"glm5_rank_last_step_timestamp_seconds{{{rank}}}", 590) for rank in RANKS),
    *(stays(f"glm5_rank_up{{{rank}}}", 1) for rank in RANKS),
    grows(f"glm5_decode_tokens_total{{{POD}}}", 1200),
    grows(f'glm5_decode_steps_total{{{POD},graph="true"}}', 270),
    grows(f'glm5_decode_steps_total{{{POD},graph="false"}}', 30),
    stays(f"glm5_decode_batch_size{{{POD}}}", 4),
    stays(f"glm5_decode_kv_tokens{{{POD}}}", 4000),
    stays(f"glm5_decode_running_requests{{{POD}}}", 4),
    stays(f'glm5_backend_info{{{POD},kv_cast="WholePool",kernel="cuda",sglang="0.5.23",gpu="H200"}}', 1),
    stays(f"glm5_backend_verified{{{POD}}}", 1),
    stays(f"glm5_exporter_expected_ranks{{{POD}}}", 4),
    stays(f'glm5_exporter_info{{{POD},version="0.1.0"}}', 1),
    grows(f"glm5_exporter_cpu_seconds_total{{{POD}}}", 0.03),
    grows(f'glm5_exporter_file_errors_total{{{POD},reason="damaged"}}', 15),
    grows(f'glm5_exporter_file_errors_total{{{POD},reason="version"}}', 0),
    # As a Prometheus of version 3 stores them, and one of version 2.
    stays(f"sglang:num_queue_reqs{{{POD}}}", 2),
    stays(f"sglang_token_usage{{{POD}}}", 0.5),
    stays(f"sglang:spec_accept_length{{{POD}}}", 2.5),
    *histogram("sglang:time_to_first_token_seconds", POD, 30, 0.5, 1),
    *histogram("sglang_e2e_request_latency_seconds", POD, 30, 5, 10),
    grows(f"sglang:num_requests_total{{{POD}}}", 30),
    grows(f"sglang:num_aborted_requests_total{{{POD}}}", 15),
    grows(f"sglang:num_retracted_requests_total{{{POD}}}", 3),
    stays(f'ALERTS{{alertname="GLM5KVCastShareHigh",alertstate="firing",severity="warning",{POD}}}', 1),
    stays(f'ALERTS{{alertname="GLM5TargetDown",alertstate="pending",severity="warning",{POD}}}', 1),
    stays('ALERTS{alertname="Watchdog",alertstate="firing",namespace="n"}', 1),
    stays(f'gpu:glm5_pod:info{{{POD},UUID="GPU-a",Hostname="h",gpu="0"}}', 1),
    stays('DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",gpu="0",Hostname="h"}', 97),
    stays('DCGM_FI_DEV_GPU_UTIL{UUID="GPU-of-others",gpu="1",Hostname="h"}', 50),
    stays('DCGM_FI_DEV_POWER_USAGE{UUID="GPU-a",gpu="0",Hostname="h"}', 430),
    stays('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",gpu="0",Hostname="h"}', 55),
    stays('DCGM_FI_DEV_MEMORY_TEMP{UUID="GPU-a",gpu="0",Hostname="h"}', 71),
    stays('DCGM_FI_DEV_FB_USED{UUID="GPU-a",gpu="0",Hostname="h"}', 120000),
    stays('DCGM_FI_DEV_FB_FREE{UUID="GPU-a",gpu="0",Hostname="h"}', 30000),
    stays('DCGM_FI_DEV_SM_CLOCK{UUID="GPU-a",gpu="0",Hostname="h"}', 1980),
    stays('DCGM_FI_DEV_XID_ERRORS{UUID="GPU-a",gpu="0",Hostname="h",err_code="31"}', 31),
    stays('DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{UUID="GPU-a",gpu="0",Hostname="h"}', 2),
    stays('DCGM_FI_DEV_ROW_REMAP_FAILURE{UUID="GPU-a",gpu="0",Hostname="h"}', 0),
    stays('glm5_operator_leader{pod="a"}', 1),
    stays('glm5_operator_leader{pod="b"}', 0),
    stays('glm5_operator_deployments{pod="a",state="Ready"}', 2),
    stays('glm5_operator_deployments{pod="a",state="Starting"}', 1),
    stays('glm5_deployment_available{namespace="n",deployment="d"}', 1),
    stays('glm5_deployment_available{namespace="n",deployment="e"}', 0),
    grows('glm5_operator_reconcile_total{pod="a",result="error"}', 3),
    grows('glm5_operator_reconcile_total{pod="a",result="unchanged"}', 150),
    *histogram("glm5_operator_reconcile_seconds", 'pod="a"', 150, 0.05, 0.1),
    *histogram("glm5_operator_queue_seconds", 'pod="a"', 150, 0.01, 0.1),
    stays('glm5_operator_queue_depth{pod="a"}', 1),
    grows('glm5_operator_api_requests_total{pod="a",method="GET",code="200"}', 30),
    grows('glm5_operator_decode_reads_total{pod="a",result="ok"}', 15),
    stays(f'glm5_deployment_condition{{{DEPLOYMENT},type="Available",status="True"}}', 1),
    stays(f'glm5_deployment_condition{{{DEPLOYMENT},type="Available",status="False"}}', 0),
    stays(f'glm5_deployment_condition{{{DEPLOYMENT},type="DecodeHealthy",status="False"}}', 1),
    stays(f'glm5_deployment_condition{{{DEPLOYMENT},type="Degraded",status="False"}}', 1),
]

BY_POD, ALL = '{pod="p"}', "{}"
OF_GPU = f'{{{POD},UUID="GPU-a",Hostname="h",gpu="0"}}'
FAULTS = f'{{{POD},UUID="GPU-a",Hostname="h",gpu="0",key="h GPU 0"}}'
KEYED = '{namespace="n",deployment="d",key="n/d"}'
BY_DEPLOYMENT = f"{{{DEPLOYMENT}}}"
# For each panel what its queries give, in their order: value by labels.
EXPECTED: dict[tuple[str, str], list[dict[str, float]]] = {
    ("glm5-decode", "Decode throughput"): [{ALL: 80}],
    ("glm5-decode", "Per GPU"): [{ALL: 20}],
    ("glm5-decode", "Inter-token latency p99"): [{ALL: 0.06475}],
    ("glm5-decode", "Step"): [{ALL: 0.04}],
    ("glm5-decode", "Cast share"): [{ALL: 0.375}],
    ("glm5-decode", "Running"): [{ALL: 4}],
    ("glm5-decode", "Queued"): [{ALL: 2}],
    ("glm5-decode", "Ranks missing"): [{ALL: 2}],
    ("glm5-decode", "Backend"): [{f'{{{POD},kv_cast="WholePool",kernel="cuda",sglang="0.5.23",gpu="H200"}}': 1}],
    ("glm5-decode", "Time per step, by cause"): [{ALL: 0.015}, {ALL: 0.0065}, {ALL: 0.0185}, {ALL: 0.01}],
    ("glm5-decode", "Cast share of the step"): [{ALL: 0.375}],
    ("glm5-decode", "Bytes written by casts"): [{ALL: 2e6}],
    ("glm5-decode", "Step time"): [{ALL: 0.0325}, {ALL: 0.0385}, {ALL: 0.03985}],
    ("glm5-decode", "Inter-token latency"): [{ALL: 0.0525}, {ALL: 0.0625}, {ALL: 0.06475}],
    ("glm5-decode", "Step time, all steps"): [{'{le="0.025"}': 0, '{le="0.04"}': 2400, '{le="+Inf"}': 2400}],
    ("glm5-decode", "Cast per step, by rank"): [{'{pod="p",rank="0"}': 0.01, '{pod="p",rank="1"}': 0.02}],
    ("glm5-decode", "Attention per step, by rank"): [{'{pod="p",rank="0"}': 0.005, '{pod="p",rank="1"}': 0.008}],
    ("glm5-decode", "Slowest rank to median"): [
        {'{namespace="n",pod="p"}': 1.23077},
        {'{namespace="n",pod="p"}': 1.33333},
        {'{namespace="n",pod="p"}': 1},
    ],
    ("glm5-decode", "Throughput"): [{BY_POD: 80}],
    ("glm5-decode", "Batch size"): [{BY_POD: 4}, {BY_POD: 4}],
    ("glm5-decode", "KV rows in use by the batch"): [{BY_POD: 4000}],
    ("glm5-decode", "Steps with CUDA graph"): [{BY_POD: 0.9}],
    ("glm5-decode", "Steps per second"): [{'{pod="p",graph="true"}': 18, '{pod="p",graph="false"}': 2}],
    ("glm5-decode", "Accepted draft length"): [{BY_POD: 2.5}],
    ("glm5-decode", "Time to first token"): [{ALL: 0.75}, {ALL: 0.95}, {ALL: 0.995}],
    ("glm5-decode", "Request latency, end to end"): [{ALL: 7.5}, {ALL: 9.5}, {ALL: 9.95}],
    ("glm5-decode", "Requests"): [{ALL: 2}, {ALL: 1}],
    ("glm5-decode", "KV pool in use"): [{BY_POD: 0.5}],
    ("glm5-decode", "Queue"): [{BY_POD: 2}],
    ("glm5-decode", "Requests pushed back"): [{BY_POD: 0.2}],
    ("glm5-decode", "GPU utilisation"): [{OF_GPU: 97}],
    ("glm5-decode", "Power"): [{OF_GPU: 430}],
    ("glm5-decode", "Temperature"): [{OF_GPU: 55}, {OF_GPU: 71}],
    ("glm5-decode", "GPU memory in use"): [{OF_GPU: 0.8}],
    ("glm5-decode", "Clock"): [{OF_GPU: 1.98e9}],
    ("glm5-decode", "GPU faults"): [{FAULTS: 31}, {FAULTS: 2}, {FAULTS: 0}],
    ("glm5-decode", "Ranks up"): [{BY_POD: 2}, {BY_POD: 4}],
    ("glm5-decode", "Since the last decode step"): [{BY_POD: 10}],
    ("glm5-decode", "Exporter's CPU"): [{BY_POD: 0.002}],
    ("glm5-decode", "Exporter's failed reads"): [{'{reason="damaged"}': 1, '{reason="version"}': 0}],
    ("glm5-fleet", "Pods"): [{ALL: 1}],
    ("glm5-fleet", "Ranks missing"): [{ALL: 2}],
    # A stat and a table, a stat and a chart of the same name.
    ("glm5-fleet", "Alerts firing"): [
        {ALL: 1},
        {f'{{alertname="GLM5KVCastShareHigh",alertstate="firing",severity="warning",{POD}}}': 1},
    ],
    ("glm5-fleet", "Decode throughput"): [{ALL: 80}, {BY_DEPLOYMENT: 80}],
    ("glm5-fleet", "Deployments"): [{KEYED: value} for value in (80, 0.04, 0.375, 4, 2, 0.5, 2)],
    ("glm5-fleet", "Cast share of the step"): [{BY_DEPLOYMENT: 0.375}],
    ("glm5-fleet", "Inter-token latency p99"): [{BY_DEPLOYMENT: 0.06475}],
    ("glm5-fleet", "Time to first token p95"): [{BY_DEPLOYMENT: 0.975}],
    ("glm5-fleet", "Running and queued"): [{BY_DEPLOYMENT: 4}, {BY_DEPLOYMENT: 2}],
    ("glm5-fleet", "KV pool in use"): [{BY_DEPLOYMENT: 0.5}],
    ("glm5-fleet", "Modes in use"): [
        {f'{{{DEPLOYMENT},kv_cast="WholePool",kernel="cuda",sglang="0.5.23",gpu="H200"}}': 1}
    ],
    ("glm5-operator", "Leaders"): [{ALL: 1}],
    ("glm5-operator", "GLM5Deployments"): [{ALL: 3}],
    ("glm5-operator", "Available"): [{ALL: 1}],
    ("glm5-operator", "Failed passes"): [{ALL: 120}],
    ("glm5-operator", "Objects by state"): [{'{state="Ready"}': 2, '{state="Starting"}': 1}],
    ("glm5-operator", "Passes"): [{'{result="error"}': 0.2, '{result="unchanged"}': 10}],
    ("glm5-operator", "Time of a pass"): [{ALL: 0.075}, {ALL: 0.0995}],
    ("glm5-operator", "Queue"): [{ALL: 1}],
    ("glm5-operator", "Wait in the queue"): [{ALL: 0.055}, {ALL: 0.0991}],
    ("glm5-operator", "Requests to the API server"): [{'{method="GET",code="200"}': 2}],
    ("glm5-operator", "Reads of decode figures"): [{'{result="ok"}': 1}],
    ("glm5-operator", "Conditions that do not hold"): [{f'{{{DEPLOYMENT},type="DecodeHealthy",status="False"}}': 1}],
}


def queries_by_panel() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for board, panel, expression in panel_queries():
        found.setdefault((board, panel), []).append(expression)
    return found


def test_every_query_has_an_expected_value():
    counts = {panel: len(expressions) for panel, expressions in queries_by_panel().items()}
    assert counts == {panel: len(values) for panel, values in EXPECTED.items()}


def test_every_panel_shows_the_right_value(promtool, tmp_path):
    cases = [
        {
            "eval_time": "10m",
            # In whole hundred-thousandths, so that the last bits of a quotient do not matter.
            "expr": f"round(({expression}) * 100000)",
            "exp_samples": [{"labels": labels, "value": round(value * 100000)} for labels, value in expected.items()],
        }
        for panel, expressions in queries_by_panel().items()
        for expression, expected in zip(expressions, EXPECTED[panel], strict=True)
    ]
    case = {"interval": "15s", "input_series": SERIES, "promql_expr_test": cases}
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [case]}))
    result = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
