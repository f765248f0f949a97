# The image of head, workers and clients. Three variants:
#   docker build -t muxfleet:0.1.0 .                                      CPU
#   docker build -t muxfleet:0.1.0-cuda --build-arg VARIANT=cuda .        NVIDIA GPUs; torch brings CUDA's libraries
#   docker build -t muxfleet:0.1.0-sglang --build-arg VARIANT=sglang .    NVIDIA GPUs, for pools with `backend: sglang`
# Any base with apt and Python 3.11 or newer as its packaged python3 will do; ours needs nothing else of it.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/muxfleet
ENV PATH=/opt/muxfleet/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src

# The largest layer first, and only again when its pins change.
ARG VARIANT=cpu
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
# A folder of wheels that the build mounts, for machines without the internet.
ARG PIP_FIND_LINKS=
COPY constraints.txt constraints-sglang-cuda.txt pyproject.toml ./
# SGLang has pins of its own, for torch and xgrammar among others: that variant is installed by its own list.
RUN cp constraints.txt pins.txt; \
    case "$VARIANT" in \
      cpu)    torch=$(sed -n 's/^torch==//p' pins.txt) \
              && pip install ${CPU_INDEX:+--extra-index-url "$CPU_INDEX"} -c pins.txt "torch==$torch+cpu" ;; \
      cuda)   pip install -c pins.txt "torch===$(sed -n 's/^torch==//p' pins.txt)" ;; \
      sglang) cp constraints-sglang-cuda.txt pins.txt \
              && pip install -c pins.txt sglang ;; \
      *)      echo "VARIANT is '$VARIANT'; it must be cpu, cuda or sglang" >&2; exit 1 ;; \
    esac
# The names alone for sglang: its list has a version of each.
RUN python -c 'import re, sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      needed = [*p["dependencies"], *p["optional-dependencies"]["otel"]]; \
      print(*(re.split("[<>=!~]", d)[0] if sys.argv[1] == "sglang" else d for d in needed), sep="\n")' "$VARIANT" \
      > requirements.txt \
 && pip install -c pins.txt -r requirements.txt
COPY . .
RUN pip install -c pins.txt --no-deps . \
 && muxfleet --version

FROM ${BASE_IMAGE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# KubeRay's probes want bash and wget; on a GPU Triton compiles what launches its kernels when an engine starts, and SGLang
# kernels of its own.
ARG VARIANT=cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends bash ca-certificates python3 wget \
 && if [ "$VARIANT" != cpu ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
 && if [ "$VARIANT" = sglang ]; then apt-get install -y --no-install-recommends g++ libnuma1; fi \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o 10001 -g 0 -m 0775 /var/lib/muxfleet /models
COPY --from=build /opt/muxfleet /opt/muxfleet
LABEL org.opencontainers.image.title="muxfleet" \
      org.opencontainers.image.description="Many LLMs on few GPUs behind one OpenAI-compatible endpoint" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/muxfleet/bin:$PATH \
    HOME=/var/lib/muxfleet \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_worker_niceness=0
WORKDIR /var/lib/muxfleet
# A number, so that Kubernetes can tell that it is not root. Group 0 may write, for OpenShift's users of any number.
USER 10001:0
EXPOSE 8000
CMD ["muxfleet", "--help"]
