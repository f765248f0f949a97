#!/usr/bin/env bash
# The CRDs that `make test-k8s` validates against, checked by their sums, into FOLDER/crds. No package index has them: they
# come from the folder $MUXFLEET_CRDS, ../shared/k8s by default, in which they may lie at any depth.
set -euo pipefail
tools=${1:?usage: k8s_crds.sh FOLDER}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source=${MUXFLEET_CRDS:-../shared/k8s}
mkdir -p "$tools/crds"
tools=$(cd "$tools" && pwd)

sums="c44704442eef0c6721ad40c1d66782c8bd3fdab9d3344306a5820910a679baa1  ray.io_rayclusters.yaml
31c2c753bba01f7e8e89cb8e8c504131b58ee42090ca536d87f5ac27605a568e  ray.io_raycronjobs.yaml
01a5cf3b17c1769fda44af7e82debcd98722f0c27b9ab84d084681c6649121f5  ray.io_rayjobs.yaml
0a8fc325e6e22b9231c1f282b309555e2ecf94227ca20a03df3d1d9a403907ab  ray.io_rayservices.yaml
53710048ba26f8620eed59d5e51b157ecf040daf5c6eef31a4b991e0808c4be5  gateway.networking.k8s.io_gatewayclasses.yaml
25b885f5870b8fff1ae82efa2628b2761cef3745900c2aecf8fb76629a01255a  gateway.networking.k8s.io_gateways.yaml
a424a0d6c953b162e71d1d97bb7e75012d8f1ac264e7274f2763d1b96ab39852  gateway.networking.k8s.io_httproutes.yaml
45a93443daa687d3654f7e9631909ff7edcdf3ec09c5e60251b74aa2722aee5d  monitoring.coreos.com_podmonitors.yaml
78be98554b9c8506ab2b4f4feb91c5f3a56e536a0a510f3a8e876a459970d56d  monitoring.coreos.com_prometheusrules.yaml
a99047972c9dd7679ce2050b9968e8a08773492e671b3e17abd476d42aa78a32  monitoring.coreos.com_servicemonitors.yaml"

check() { (cd "$tools/crds" && sha256sum --check --quiet --strict <<<"$sums"); }

check >/dev/null 2>&1 && exit 0
if [ -d "$source" ]; then
  while read -r _ name; do
    found=$(find -L "$source" -name "$name" -type f | head -n 1)
    if [ -n "$found" ]; then cp -f "$found" "$tools/crds/$name"; fi
  done <<<"$sums"
fi
check || {
  echo "CRDs are missing in $source, or are not those that the tests know (above). Put these into one folder and name it in MUXFLEET_CRDS:
  KubeRay v1.7.0: ray-operator/config/crd/bases/ray.io_{rayclusters,raycronjobs,rayjobs,rayservices}.yaml
  Gateway API v1.6.1: config/crd/standard/gateway.networking.k8s.io_{gatewayclasses,gateways,httproutes}.yaml
  prometheus-operator v0.93.0: example/prometheus-operator-crd/monitoring.coreos.com_{podmonitors,prometheusrules,servicemonitors}.yaml" >&2
  exit 1
}
