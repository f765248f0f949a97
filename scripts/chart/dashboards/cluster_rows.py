"""Builds the dashboard of what a fleet runs on: Ray and Serve, and GPUs as NVIDIA's DCGM exporter sees them."""

from collections.abc import Sequence

from scripts.chart.dashboards.panels import Dashboard, Panel, Variable

_CLUSTER = Variable(
    name="cluster", label="ray_io_cluster", of_metric="ray_node_cpu_utilization", shown_as="Ray cluster"
)
_HOST = Variable(name="host", label="Hostname", of_metric="DCGM_FI_DEV_GPU_UTIL", shown_as="GPU host")


def cluster_dashboard() -> Dashboard:
    return Dashboard(
        name="cluster",
        title="muxfleet / cluster",
        variables=(_CLUSTER, _HOST),
        rows={"Ray": _ray(), "GPU": _gpu()},
        is_annotated=False,
    )


def _ray() -> Sequence[Panel]:
    return [
        Panel(
            title="Healthy replicas",
            queries={
                "{{application}} {{deployment}}": "sum by (application, deployment) "
                f"({_of_cluster('ray_serve_deployment_replica_healthy')})"
            },
            unit="short",
            description="A unit is a replica of units-POOL; the control loop is the only one of control.",
        ),
        Panel(
            title="Replicas started",
            queries={
                "{{application}} {{deployment}}": "sum by (application, deployment) "
                f"({_of_cluster('ray_serve_replica_startup_latency_ms_count')})"
            },
            unit="short",
            description="Since Serve's controller started: each step is a replica that came, or came again.",
        ),
        Panel(
            title="Health checks that failed",
            queries={
                "{{application}} {{deployment}}": "sum by (application, deployment) "
                f"({_of_cluster('ray_serve_health_check_failures_total')})"
            },
            unit="short",
            description="Since Serve's controller started.",
        ),
        Panel(
            title="Wait of event loops, p99",
            queries={
                "{{deployment}} {{component}} {{loop_type}}": "histogram_quantile(0.99, "
                "sum by (deployment, component, loop_type, le) "
                f"(rate({_of_cluster('ray_serve_event_loop_scheduling_latency_ms_bucket')}[$__rate_interval])))"
            },
            unit="ms",
            description="How late the loops of Serve's proxies, routers and replicas come to what is due.",
        ),
        Panel(
            title="Requests at Serve's proxies",
            queries={
                "{{application}} {{status_code}}": "sum by (application, status_code) "
                f"(rate({_of_cluster('ray_serve_num_http_requests_total')}[$__rate_interval])) > 0"
            },
            unit="reqps",
        ),
        Panel(
            title="Calls that replicas work on",
            queries={
                "{{application}} {{deployment}}": "sum by (application, deployment) "
                f"({_of_cluster('ray_serve_replica_processing_queries')})"
            },
            unit="short",
        ),
        Panel(
            title="CPU of nodes",
            queries={"{{instance}}": f"max by (instance) ({_of_cluster('ray_node_cpu_utilization')})"},
            unit="percent",
        ),
        Panel(
            title="Memory of nodes",
            queries={
                "{{instance}}": f"max by (instance) ({_of_cluster('ray_node_mem_used')})"
                f" / max by (instance) ({_of_cluster('ray_node_mem_total')})"
            },
            unit="percentunit",
        ),
        Panel(
            title="Memory of processes",
            queries={"{{Component}}": f"sum by (Component) ({_of_cluster('ray_component_rss_bytes')})"},
            unit="bytes",
            is_stacked=True,
        ),
        Panel(
            title="Object store",
            queries={"{{Location}}": f"sum by (Location) ({_of_cluster('ray_object_store_memory')})"},
            unit="bytes",
            description="muxfleet keeps next to nothing there.",
        ),
        Panel(
            title="Disk of nodes",
            queries={
                "{{instance}}": f"max by (instance) ({_of_cluster('ray_node_disk_usage')}) / (max by (instance) "
                f"({_of_cluster('ray_node_disk_usage')}) + max by (instance) ({_of_cluster('ray_node_disk_free')}))"
            },
            unit="percentunit",
        ),
    ]


def _gpu() -> Sequence[Panel]:
    used, free = _of_gpus("DCGM_FI_DEV_FB_USED"), _of_gpus("DCGM_FI_DEV_FB_FREE")
    return [
        Panel(
            title="Utilization",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_DEV_GPU_UTIL")},
            unit="percent",
            description="Share of time in which any kernel ran, however few SMs it had.",
        ),
        Panel(
            title="Compute engine active",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_PROF_GR_ENGINE_ACTIVE")},
            unit="percentunit",
        ),
        Panel(
            title="Tensor cores active",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")},
            unit="percentunit",
            description="High where prefill runs.",
        ),
        Panel(
            title="Memory bandwidth in use",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_PROF_DRAM_ACTIVE")},
            unit="percentunit",
            description="High where decode runs.",
        ),
        Panel(
            title="Memory in use",
            queries={"{{Hostname}} {{gpu}}": f"{used} / ({used} + {free})"},
            unit="percentunit",
        ),
        Panel(title="Power", queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_DEV_POWER_USAGE")}, unit="watt"),
        Panel(title="Temperature", queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_DEV_GPU_TEMP")}, unit="celsius"),
        Panel(
            title="Clock of the SMs",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_DEV_SM_CLOCK") + " * 1e6"},
            unit="hertz",
        ),
        Panel(
            title="Last XID error",
            queries={"{{Hostname}} {{gpu}}": _of_gpus("DCGM_FI_DEV_XID_ERRORS") + " > 0"},
            unit="short",
            description="NVIDIA's number of the fault: 79 is a GPU that has fallen off the bus.",
        ),
    ]


def _of_cluster(metric: str) -> str:
    return f'{metric}{{ray_io_cluster=~"$cluster"}}'


def _of_gpus(metric: str) -> str:
    return f'max by (Hostname, gpu) ({metric}{{Hostname=~"$host"}})'
