#!/usr/bin/env bash
# Builds an image with buildah from a Debian base made here, without Docker and without an image registry, and runs it as
# its user: the version, the programs that KubeRay wants, and in the CPU image a fleet that answers /health and a
# completion. VARIANT=cuda or sglang builds those, which want tens of GB of disk and, to serve, a GPU.
# Root, on Debian or Ubuntu: apt install buildah mmdebstrap
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in buildah mmdebstrap curl; do
  command -v "$program" >/dev/null || { echo "$program is missing: apt install buildah mmdebstrap curl" >&2; exit 1; }
done
variant=${VARIANT:-cpu}
work=${MUXFLEET_IMAGE_WORK:-$(mktemp -d)}
mkdir -p "$work"
B=(buildah --storage-driver overlay --root "$work/r" --runroot "$work/x")
container=""
cleanup() {
  if [ -n "$container" ]; then "${B[@]}" rm "$container" >/dev/null || true; fi
  if [ -z "${MUXFLEET_IMAGE_WORK:-}" ]; then "${B[@]}" rmi --all --force >/dev/null 2>&1 || true; rm -rf "$work"; fi
}
trap cleanup EXIT

if ! "${B[@]}" inspect --type image localhost/debian:bookworm >/dev/null 2>&1; then
  echo "[1/3] a Debian base"
  sources=()
  if [ -e /etc/apt/sources.list.d/debian.sources ]; then sources=(/etc/apt/sources.list.d/debian.sources); fi
  mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates bookworm "$work/base.tar" "${sources[@]}"
  base=$("${B[@]}" from scratch)
  "${B[@]}" add -q "$base" "$work/base.tar" / >/dev/null
  "${B[@]}" commit -q "$base" localhost/debian:bookworm >/dev/null
  "${B[@]}" rm "$base" >/dev/null
fi

echo "[2/3] the image"
mounts=()
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -e "$file" ]; then mounts+=(-v "$file:$file:ro"); fi
done
arguments=(--build-arg BASE_IMAGE=localhost/debian:bookworm --build-arg "VARIANT=$variant")
arguments+=(--build-arg "CPU_INDEX=${CPU_INDEX-https://download.pytorch.org/whl/cpu}")
if [ -d "${PIP_FIND_LINKS:-}" ]; then
  mounts+=(-v "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
  arguments+=(--build-arg "PIP_FIND_LINKS=$PIP_FIND_LINKS")
fi
began=$SECONDS
"${B[@]}" bud --quiet --layers --format docker --isolation chroot "${arguments[@]}" "${mounts[@]}" -t localhost/muxfleet .
echo "      built in $((SECONDS - began)) s, $("${B[@]}" images --format '{{.Size}}' localhost/muxfleet)"

echo "[3/3] run as its user"
container=$("${B[@]}" from localhost/muxfleet)
inside() { "${B[@]}" run --isolation chroot "$container" -- "$@"; }
[ "$("${B[@]}" inspect --type image --format '{{.OCIv1.Config.User}}' localhost/muxfleet)" = 10001:0 ]
[ "$(inside id -u)" = 10001 ]
inside bash -c 'command -v bash wget ray serve muxfleet muxfleet-haproxy && test -w "$HOME"'
inside muxfleet --version
if inside find /opt /etc /var/lib/muxfleet -size +0 \( -name pip.conf -o -name .netrc \) 2>/dev/null | grep .; then
  echo "the image holds the builder's configuration" >&2
  exit 1
fi
if [ "$variant" = sglang ]; then
  inside python -c 'import sglang, torch, transformers, muxfleet.sglang_plugin; print("      SGLang", sglang.__version__, "torch", torch.__version__)'
fi
if [ "$variant" != cpu ]; then
  echo "      not served: that needs a GPU"
  exit 0
fi
# The network is this machine's: ports of our own.
port=${MUXFLEET_IMAGE_PORT:-18431}
inside muxfleet demo --write /tmp/demo >/dev/null
inside bash -c 'echo $$ >/tmp/fleet.pid; exec timeout --signal=INT 240 muxfleet up /tmp/demo/demo.yaml --port "$0"' \
  "$port" >"$work/up.log" 2>&1 &
up=$!
for _ in $(seq 200); do
  if curl -sf -o "$work/ready.json" "http://127.0.0.1:$port/ready"; then break; fi
  kill -0 "$up" 2>/dev/null || { cat "$work/up.log" >&2; exit 1; }
  sleep 1
done
curl -sf "http://127.0.0.1:$port/health"
echo
curl -sf "http://127.0.0.1:$port/v1/completions" -H 'content-type: application/json' \
  -d '{"model": "demo-llama", "prompt": "Hello", "max_tokens": 4}' | tee "$work/completion.json" | grep -q '"text"'
echo "      a completion of demo-llama: $(cut -c1-120 "$work/completion.json")"
# The container shares this machine's process ids: ended from here, the fleet takes its Ray down with it.
kill -INT "$(inside cat /tmp/fleet.pid)"
wait "$up" || true
