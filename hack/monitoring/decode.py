"""The Decode dashboard: one deployment's decode loop, from tokens per second down to the cast on one rank."""

from typing import Any

from .panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SELECTOR,
    Heatmap,
    Query,
    Row,
    Series,
    Stat,
    Table,
    build_dashboard,
    label_variable,
    sglang,
)
from .panels import PromQueryFormat as Format

RATE = "$__rate_interval"


def per_second(metric: str, *, by: str = "", more: str = "") -> str:
    """Return the summed rate of a counter."""
    group = f" by ({by})" if by else ""
    where = SELECTOR + more
    series = sglang(metric.removeprefix("sglang:"), where) if metric.startswith("sglang:") else f"{metric}{{{where}}}"
    return f"sum{group}(rate({series}[{RATE}]))"


def mean(histogram: str, *, by: str = "") -> str:
    """Return a histogram's mean: exact, unlike a quantile of it."""
    return f"{per_second(f'{histogram}_sum', by=by)} / {per_second(f'{histogram}_count', by=by)}"


def quantile(q: float, histogram: str, *, more: str = "") -> str:
    """Return an interpolated quantile of a histogram."""
    return f"histogram_quantile({q}, {per_second(f'{histogram}_bucket', by='le', more=more)})"


def quantiles(histogram: str, *, more: str = "") -> list[Query]:
    """Return p50, p90 and p99 of a histogram."""
    return [Query(quantile(q / 100, histogram, more=more), f"p{q}") for q in (50, 90, 99)]


def slowest_to_median(histogram: str) -> str:
    """Return the slowest rank's mean over the median rank's, by pod."""
    by_rank = mean(histogram, by="namespace, pod, rank")
    return f"max by (namespace, pod) ({by_rank}) / quantile by (namespace, pod) (0.5, {by_rank})"


STEP, INTERVAL = "glm5_decode_step_seconds", "glm5_decode_interval_seconds"
CAST, ATTENTION = "glm5_decode_cast_seconds", "glm5_decode_attention_seconds"
SHARE_OF_CAST = f"{per_second(f'{CAST}_sum')} / {per_second(f'{STEP}_sum')}"
OVERVIEW = Row(
    "Now",
    [
        Stat(
            "Decode throughput",
            "Tokens that decode steps gave to requests, per second, all chosen pods together.",
            "suffix: tok/s",
            [Query(per_second("glm5_decode_tokens_total"))],
            base=BLUE,
            decimals=1,
        ),
        Stat(
            "Per GPU",
            "Decode throughput divided by the number of ranks: one rank is one GPU.",
            "suffix: tok/s",
            [Query(f"{per_second('glm5_decode_tokens_total')} / sum(glm5_exporter_expected_ranks{{{SELECTOR}}})")],
            base=BLUE,
            decimals=2,
        ),
        Stat(
            "Inter-token latency p99",
            "99 of 100 decode steps follow the one before within this time: what a reader sees between two tokens.",
            "s",
            [Query(quantile(0.99, INTERVAL, more=',rank="0"'))],
            base=BLUE,
        ),
        Stat(
            "Step",
            "Mean time of a decode step's forward pass over all ranks: GPU time, on a CPU wall time.",
            "s",
            [Query(mean(STEP))],
            base=BLUE,
        ),
        Stat(
            "Cast share",
            "Part of the step spent in passes that only convert the KV cache. With kvCast Never it is 0. Over 10 % an"
            " alert fires: the cast grows with the pool, not with the work.",
            "percentunit",
            [Query(SHARE_OF_CAST)],
            thresholds=[(0.05, ORANGE), (0.10, RED)],
            decimals=1,
        ),
        Stat(
            "Running",
            "Requests in decoding now.",
            "none",
            [Query(f"sum(glm5_decode_running_requests{{{SELECTOR}}})")],
            base=BLUE,
        ),
        Stat(
            "Queued",
            "Requests that wait for a place in the batch (SGLang samples this every 40 decode steps).",
            "none",
            [Query(f"sum({sglang('num_queue_reqs', SELECTOR)})")],
            thresholds=[(1, ORANGE), (50, RED)],
        ),
        Stat(
            "Ranks missing",
            "Ranks that should run and do not report: dead, or not started yet.",
            "none",
            [Query(f"sum(glm5_exporter_expected_ranks{{{SELECTOR}}}) - sum(glm5_rank_up{{{SELECTOR}}})")],
            thresholds=[(1, RED)],
        ),
        Table(
            "Backend",
            "How each pod reads the KV cache, by which kernel, in which versions; Verified tells whether the server has"
            " proved that this is the backend in use.",
            "none",
            [
                Query(
                    f"glm5_backend_info{{{SELECTOR}}} * on (namespace, pod, deployment) group_left ()"
                    f" glm5_backend_verified{{{SELECTOR}}}",
                    format=Format.TABLE,
                )
            ],
            columns={
                "deployment": "Deployment",
                "pod": "Pod",
                "kv_cast": "kvCast",
                "kernel": "Kernel",
                "Value": "Verified",
                "gpu": "GPU",
                "version": "glm5-mla",
                "sglang": "SGLang",
                "flashinfer": "FlashInfer",
                "torch": "torch",
            },
            words={"Value": {"1": ("yes", GREEN), "0": ("no", RED)}},
            height=5,
        ),
    ],
)

STEP_ROW = Row(
    "Where a decode step's time goes",
    [
        Series(
            "Time per step, by cause",
            "Mean over steps and ranks. Cast: passes that only convert KV. Attention: its kernels. Rest of the forward:"
            " everything else on the GPU. Host gap: from the end of one step to the start of the next, GPU idle.",
            "s",
            [
                Query(mean(CAST), "cast"),
                Query(mean(ATTENTION), "attention"),
                Query(f"clamp_min(({mean(STEP)}) - ({mean(CAST)}) - ({mean(ATTENTION)}), 0)", "rest of the forward"),
                Query(f"clamp_min(({mean(INTERVAL)}) - ({mean(STEP)}), 0)", "host gap"),
            ],
            width=12,
            height=10,
            stacked=True,
            colors={"cast": RED, "attention": BLUE, "rest of the forward": GREEN, "host gap": GREY},
        ),
        Series(
            "Cast share of the step",
            "Time in casts over time of the forward pass. The line is where the alert stands.",
            "percentunit",
            [Query(SHARE_OF_CAST, "cast share")],
            width=6,
            height=10,
            maximum=1,
            limit=0.10,
            colors={"cast share": RED},
        ),
        Series(
            "Bytes written by casts",
            "Converted KV that casts write to memory, per second, all ranks together.",
            "Bps",
            [Query(per_second("glm5_decode_cast_bytes_total"), "cast")],
            at_least=1000,
            width=6,
            height=10,
            colors={"cast": RED},
        ),
        Series(
            "Step time",
            "Quantiles of the forward pass over all ranks, interpolated within buckets a factor of 1.6 wide.",
            "s",
            quantiles(STEP),
        ),
        Series(
            "Inter-token latency",
            "Quantiles of the time from one decode step's end to the next one's, on rank 0. Pauses without work are"
            " left out.",
            "s",
            quantiles(INTERVAL, more=',rank="0"'),
        ),
        Heatmap(
            "Step time, all steps",
            "How many steps took how long. Two bands mean two kinds of steps, such as with and without CUDA graph.",
            "s",
            [
                Query(
                    f"sum by (le) (increase({STEP}_bucket{{{SELECTOR}}}[{RATE}]))",
                    "{{le}}",
                    format=Format.HEATMAP,
                )
            ],
        ),
    ],
)

RANKS = Row(
    "Ranks",
    [
        Series(
            "Cast per step, by rank",
            "Mean time that a step spends in casts, on each rank.",
            "s",
            [Query(mean(CAST, by="pod, rank"), "{{pod}} rank {{rank}}")],
            at_least=0.001,
        ),
        Series(
            "Attention per step, by rank",
            "Mean time that a step spends in attention kernels, on each rank. One rank that stands out is a slow GPU.",
            "s",
            [Query(mean(ATTENTION, by="pod, rank"), "{{pod}} rank {{rank}}")],
        ),
        Series(
            "Slowest rank to median",
            "The slowest rank's mean time over the median rank's: 1 is even. Step time hides a slow rank, because ranks"
            " wait for one another; time in casts and in attention does not. The line is where the alert stands.",
            "none",
            [
                Query(slowest_to_median(ATTENTION), "attention {{pod}}"),
                Query(slowest_to_median(CAST), "cast {{pod}}"),
                Query(slowest_to_median(STEP), "step {{pod}}"),
            ],
            minimum=1,
            limit=1.5,
        ),
    ],
)

BATCH = Row(
    "Batch",
    [
        Series(
            "Throughput",
            "Decode tokens per second, by pod.",
            "suffix: tok/s",
            [Query(per_second("glm5_decode_tokens_total", by="pod"), "{{pod}}")],
        ),
        Series(
            "Batch size",
            "Requests in a decode step's batch, mean over 10 s, and requests in decoding, by pod.",
            "none",
            [
                Query(f"sum by (pod) (glm5_decode_batch_size{{{SELECTOR}}})", "batch {{pod}}"),
                Query(f"sum by (pod) (glm5_decode_running_requests{{{SELECTOR}}})", "running {{pod}}"),
            ],
        ),
        Series(
            "KV rows in use by the batch",
            "KV rows that a decode step has to read, mean over 10 s, by pod: what attention time should follow.",
            "short",
            [Query(f"sum by (pod) (glm5_decode_kv_tokens{{{SELECTOR}}})", "{{pod}}")],
        ),
        Series(
            "Steps with CUDA graph",
            "Part of the decode steps that ran as a CUDA graph. On a GPU it should be near 100 %; the alert stands at"
            " 95 %. A CPU has none.",
            "percentunit",
            [
                Query(
                    per_second("glm5_decode_steps_total", by="pod", more=',graph="true"')
                    + " / "
                    + per_second("glm5_decode_steps_total", by="pod"),
                    "{{pod}}",
                )
            ],
            maximum=1,
        ),
        Series(
            "Steps per second",
            "Decode steps, by pod and whether they ran as a CUDA graph.",
            "suffix: steps/s",
            [Query(per_second("glm5_decode_steps_total", by="pod, graph"), "{{pod}} graph {{graph}}")],
        ),
        Series(
            "Accepted draft length",
            "With speculative decoding: tokens a verify step accepts on average. Empty without it.",
            "none",
            [Query(f"avg by (pod) ({sglang('spec_accept_length', SELECTOR)} > 0)", "{{pod}}")],
        ),
    ],
)

USERS = Row(
    "What users see",
    [
        Series(
            "Time to first token",
            "Quantiles over requests, as SGLang measures it: queue and prefill included.",
            "s",
            quantiles("sglang:time_to_first_token_seconds"),
        ),
        Series(
            "Request latency, end to end",
            "Quantiles over finished requests, as SGLang measures it.",
            "s",
            quantiles("sglang:e2e_request_latency_seconds"),
        ),
        Series(
            "Requests",
            "Requests finished and aborted, per second.",
            "reqps",
            [
                Query(per_second("sglang:num_requests_total"), "finished"),
                Query(f"{per_second('sglang:num_aborted_requests_total')} or vector(0)", "aborted"),
            ],
            colors={"finished": GREEN, "aborted": RED},
        ),
    ],
)

POOL = Row(
    "KV pool and queue",
    [
        Series(
            "KV pool in use",
            "Part of the KV pool's rows that hold a request's or a cached prefix's tokens. The line is where the alert"
            " stands: beyond it requests wait or are pushed back.",
            "percentunit",
            [Query(f"max by (pod) ({sglang('token_usage', SELECTOR)})", "{{pod}}")],
            maximum=1,
            limit=0.95,
        ),
        Series(
            "Queue",
            "Requests waiting for a place in the batch, by pod.",
            "none",
            [Query(f"sum by (pod) ({sglang('num_queue_reqs', SELECTOR)})", "{{pod}}")],
            at_least=5,
        ),
        Series(
            "Requests pushed back",
            "Running requests that lost their KV rows to others and start over (retractions), per second.",
            "reqps",
            [
                # SGLang has no such series before the first one.
                Query(
                    per_second("sglang:num_retracted_requests_total", by="pod")
                    + f" or max by (pod) ({sglang('token_usage', SELECTOR)}) * 0",
                    "{{pod}}",
                )
            ],
            at_least=1,
        ),
    ],
)


def of_gpu(series: str) -> str:
    """Return a value of each GPU that a chosen pod has, with the GPU's number and machine as labels."""
    return f"max by (UUID) ({series}) * on (UUID) group_right () gpu:glm5_pod:info{{{SELECTOR}}}"


def fault(series: str) -> Query:
    """Return a query for one column of the table of faults, keyed by machine and GPU."""
    return Query(f'label_join({of_gpu(series)}, "key", " GPU ", "Hostname", "gpu")', format=Format.TABLE)


GPU = "{{Hostname}} GPU {{gpu}}"
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
GPUS = Row(
    "GPUs, where NVIDIA's DCGM exporter runs (else this row has no data)",
    [
        Series(
            "GPU utilisation",
            "Part of the time in which any kernel ran on the GPU: high whenever it decodes, no measure of how well.",
            "percent",
            [Query(of_gpu("DCGM_FI_DEV_GPU_UTIL"), GPU)],
            maximum=100,
        ),
        Series(
            "Power",
            "What each GPU draws. Decoding is bound by memory and stays under the limit; long prefills reach it.",
            "watt",
            [Query(of_gpu("DCGM_FI_DEV_POWER_USAGE"), GPU)],
        ),
        Series(
            "Temperature",
            "Of each GPU's chip and memory. One that is hotter than its neighbours lowers its clock first.",
            "celsius",
            [
                Query(of_gpu("DCGM_FI_DEV_GPU_TEMP"), f"{GPU} chip"),
                Query(of_gpu("DCGM_FI_DEV_MEMORY_TEMP"), f"{GPU} memory"),
            ],
            minimum=None,
        ),
        Series(
            "GPU memory in use",
            "Weights, KV pool, graphs and workspaces: nearly all of it, and flat, while a server runs.",
            "percentunit",
            [Query(of_gpu(f"{USED} / ({USED} + {FREE})"), GPU)],
            maximum=1,
        ),
        Series(
            "Clock",
            "Clock of the multiprocessors. One GPU below the others is held back by heat or power.",
            "hertz",
            [Query(of_gpu("DCGM_FI_DEV_SM_CLOCK * 1e6"), GPU)],
        ),
        Table(
            "GPU faults",
            "Number of the last error (Xid) that the driver reported, memory rows set aside after uncorrectable errors,"
            " and whether one could not be: 0 in all three is healthy.",
            "none",
            [
                fault("DCGM_FI_DEV_XID_ERRORS"),
                fault("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
                fault("DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            ],
            columns={
                "key": "GPU",
                "Value #A": "Last Xid",
                "Value #B": "Rows set aside",
                "Value #C": "Could not be",
            },
            words={"Value #C": {"0": ("no", GREEN), "1": ("yes", RED)}},
            join="key",
            width=8,
        ),
    ],
)

HEALTH = Row(
    "Are these figures fresh?",
    [
        Series(
            "Ranks up",
            "Ranks whose heartbeat is fresh, and ranks that should be there, by pod.",
            "none",
            [
                Query(f"sum by (pod) (glm5_rank_up{{{SELECTOR}}})", "up {{pod}}"),
                Query(f"sum by (pod) (glm5_exporter_expected_ranks{{{SELECTOR}}})", "expected {{pod}}"),
            ],
            width=6,
        ),
        Series(
            "Since the last decode step",
            "Age of the newest decode step over all ranks. It grows while a server has nothing to do.",
            "s",
            [Query(f"time() - max by (pod) (glm5_rank_last_step_timestamp_seconds{{{SELECTOR}}})", "{{pod}}")],
            width=6,
        ),
        Series(
            "Exporter's CPU",
            "CPU that the exporter uses, of one core.",
            "percentunit",
            [Query(per_second("glm5_exporter_cpu_seconds_total", by="pod"), "{{pod}}")],
            at_least=0.01,
            width=6,
        ),
        Series(
            "Exporter's failed reads",
            "Reads of a rank's file that failed, by reason: ranks whose file can't be read count as down.",
            "suffix: reads/s",
            [Query(per_second("glm5_exporter_file_errors_total", by="reason"), "{{reason}}")],
            at_least=1,
            width=6,
        ),
    ],
)

STARTS = {
    "name": "Server starts",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "enable": True,
    "hide": False,
    "iconColor": "blue",
    "expr": f'max by (deployment, pod) (glm5_rank_start_time_seconds{{{SELECTOR},rank="0"}}) * 1000',
    "useValueForTime": "on",
    "titleFormat": "Server started",
    "textFormat": "{{deployment}} {{pod}}",
}


def decode_dashboard() -> dict[str, Any]:
    """Return the Decode dashboard's JSON model."""
    return build_dashboard(
        uid="glm5-decode",
        title="GLM-5 / Decode",
        description="Decode speed of GLM5Deployments, step by step and rank by rank: what a step costs and why.",
        rows=[OVERVIEW, STEP_ROW, RANKS, BATCH, USERS, POOL, HEALTH, GPUS],
        variables=[
            label_variable("namespace", "Namespace", "label_values(glm5_exporter_info, namespace)"),
            label_variable(
                "deployment", "Deployment", 'label_values(glm5_exporter_info{namespace=~"$namespace"}, deployment)'
            ),
            label_variable(
                "pod",
                "Pod",
                'label_values(glm5_exporter_info{namespace=~"$namespace",deployment=~"$deployment"}, pod)',
            ),
        ],
        annotations=[STARTS],
    )
