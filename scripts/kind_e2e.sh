#!/usr/bin/env bash
# The chart in a kind cluster with KubeRay's operator: install, helm test, uninstall. For people with Docker, kind, helm and
# kubectl. It has NOT been run by the project itself, whose CI has no Docker engine: read it before you trust it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for program in docker kind helm kubectl; do
  command -v "$program" >/dev/null || { echo "$program is missing" >&2; exit 1; }
done
cluster=${KIND_CLUSTER:-muxfleet-e2e}
kind create cluster --name "$cluster" --wait 5m
trap 'kind delete cluster --name "$cluster"' EXIT

docker build -t muxfleet:e2e .
kind load docker-image --name "$cluster" muxfleet:e2e
helm repo add kuberay https://ray-project.github.io/kuberay-helm/
helm install kuberay-operator kuberay/kuberay-operator --version 1.7.0 --namespace kuberay --create-namespace --wait

# The demo's checkpoints are written by the image itself, into a claim that the fleet mounts.
kubectl create namespace llm
kubectl -n llm apply -f - <<'YAML'
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: demo-checkpoints}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: write-checkpoints}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      securityContext: {fsGroup: 10001}
      containers:
        - name: write
          image: muxfleet:e2e
          command: [muxfleet, demo, --write, /models]
          volumeMounts: [{name: models, mountPath: /models}]
      volumes: [{name: models, persistentVolumeClaim: {claimName: demo-checkpoints}}]
YAML
kubectl -n llm wait --for=condition=complete job/write-checkpoints --timeout=5m

helm dependency update helm
helm install fleet helm --namespace llm --values helm/ci/cpu-demo-values.yaml --set image.tag=e2e \
  --set 'fleet.pools[0].name=laptop' --set 'fleet.pools[0].cores=1' --set 'fleet.pools[0].nodes.min=1' \
  --set 'fleet.pools[0].nodes.max=1' --set 'fleet.pools[0].kv_memory=128MiB' \
  --set workers.resources.requests.cpu=1 --set workers.resources.limits.cpu=2 \
  --set workers.resources.requests.memory=3Gi --set workers.resources.limits.memory=4Gi \
  --set head.resources.requests.cpu=500m --set head.resources.requests.memory=2Gi \
  --set head.resources.limits.cpu=2 --set head.resources.limits.memory=4Gi
kubectl -n llm wait --for=condition=Ready rayservice/fleet-muxfleet --timeout=15m
helm --namespace llm test fleet --logs
helm --namespace llm uninstall fleet --wait
echo "install, test and uninstall went well"
