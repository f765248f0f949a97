# The image of head, workers and clients. Two variants:
#   docker build -t muxfleet:0.1.0 .                                  CPU
#   docker build -t muxfleet:0.1.0-cuda --build-arg VARIANT=cuda .    NVIDIA GPUs; torch brings CUDA's libraries
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
COPY constraints.txt pyproject.toml ./
RUN torch=$(sed -n 's/^torch==//p' constraints.txt) \
 && case "$VARIANT" in \
      cpu)  pip install ${CPU_INDEX:+--extra-index-url "$CPU_INDEX"} -c constraints.txt "torch==$torch+cpu" ;; \
      cuda) pip install -c constraints.txt "torch===$torch" ;; \
      *)    echo "VARIANT is '$VARIANT'; it must be cpu or cuda" >&2; exit 1 ;; \
    esac
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["otel"], sep="\n")' \
      > requirements.txt \
 && pip install -c constraints.txt -r requirements.txt
# For example sglang, for pools with `backend: sglang`. It brings its own pins, so ours do not bind it.
ARG EXTRA_PACKAGES=
# hadolint ignore=DL3013
RUN if [ -n "$EXTRA_PACKAGES" ]; then pip install $EXTRA_PACKAGES; fi
COPY . .
RUN pip install -c constraints.txt --no-deps . \
 && muxfleet --version

FROM ${BASE_IMAGE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# KubeRay's probes want bash and wget; on a GPU Triton compiles what launches its kernels when an engine starts.
ARG VARIANT=cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends bash ca-certificates python3 wget \
 && if [ "$VARIANT" = cuda ]; then apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; fi \
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
