{{/*
Pod templates of head and workers. Nothing in them may change with the chart's version or with the fleet's models: a changed
pod template replaces pods, or the whole Ray cluster.
*/}}

{{/*
A pod template with a label that tells it from others: by it `muxfleet rollout` knows which pods to replace. Takes what
podTemplate takes; `labels` of the Ray node count too, for they end up in its start command. How the chart writes it does not.
*/}}
{{- define "muxfleet.labelledTemplate" -}}
{{- $content := include "muxfleet.podTemplate" . | fromYaml | toJson -}}
{{- include "muxfleet.podTemplate" (merge (dict "template" (printf "%s%s" $content (toJson .labels) | sha256sum | trunc 10)) .) -}}
{{- end -}}

{{- define "muxfleet.podLabels" -}}
{{- include "muxfleet.selectorLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
muxfleet.io/pool: {{ toYaml . }}
{{- end }}
{{- with .template }}
muxfleet.io/template: {{ . | quote }}
{{- end }}
{{- with .group.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A command that asks a port of its own pod. Takes a list of seconds and port/path. */}}
{{- define "muxfleet.healthy" -}}
wget --no-proxy -q -T {{ first . }} -O- http://localhost:{{ last . }} | grep -q success
{{- end -}}

{{/* Takes root, group (values of head or of a worker group), component, pool, resources, ports, grace, gatewayPort. */}}
{{- define "muxfleet.podTemplate" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "muxfleet.podLabels" . | nindent 4 }}
  {{- with .group.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "muxfleet.serviceAccountName" .root | quote }}
  automountServiceAccountToken: {{ and (eq .component "head") $values.autoscaling.enabled }}
  {{- with .grace }}
  terminationGracePeriodSeconds: {{ . | int64 }}
  {{- end }}
  securityContext:
    {{- toYaml $values.podSecurityContext | nindent 4 }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.priorityClassName }}
  priorityClassName: {{ toYaml . }}
  {{- end }}
  {{- with .group.runtimeClassName }}
  runtimeClassName: {{ toYaml . }}
  {{- end }}
  {{- with .group.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "muxfleet.topologySpread" . }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ ternary "ray-head" "ray-worker" (eq .component "head") }}
      image: {{ include "muxfleet.groupImage" . | quote }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      ports:
        {{- toYaml .ports | nindent 8 }}
      env:
        {{- include "muxfleet.env" . | nindent 8 }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      {{- if ne .component "head" }}
      # Slow nodes may take long to join the cluster; models are loaded later and hold no probe up.
      startupProbe:
        exec:
          command: [bash, -c, {{ include "muxfleet.healthy" (list 2 "52365/api/local_raylet_healthz") | quote }}]
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ div ($values.startup.deadlineSeconds | int64) 10 }}
      # KubeRay's asks the same, but through a proxy where http_proxy is set, and one answer that needs more than two
      # seconds takes the worker out of the Service.
      readinessProbe:
        exec:
          command: [bash, -c, {{ printf "%s && %s" (include "muxfleet.healthy" (list 4 "52365/api/local_raylet_healthz")) (include "muxfleet.healthy" (list 4 (printf "%d/-/healthz" (.gatewayPort | int64)))) | quote }}]
        periodSeconds: 5
        timeoutSeconds: 10
        failureThreshold: 2
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /var/lib/muxfleet}
        {{- if $values.modelCache.enabled }}
        - {name: models, mountPath: {{ $values.modelCache.mountPath }}{{ if include "muxfleet.readsOnly" .root }}, readOnly: true{{ end }}}
        {{- end }}
        {{- if $values.apiKeys.existingSecret }}
        - {name: api-keys, mountPath: /etc/muxfleet/api-keys, readOnly: true}
        {{- end }}
        {{- if .group.shmSize }}
        - {name: shm, mountPath: /dev/shm}
        {{- end }}
        {{- with .group.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    - {name: home, emptyDir: {}}
    {{- if $values.modelCache.enabled }}
    - {name: models, persistentVolumeClaim: {claimName: {{ include "muxfleet.claimName" .root | quote }}{{ if include "muxfleet.readsOnly" .root }}, readOnly: true{{ end }}}}
    {{- end }}
    {{- with $values.apiKeys.existingSecret }}
    - {name: api-keys, secret: {secretName: {{ . | quote }}}}
    {{- end }}
    {{- with .group.shmSize }}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ . }}}}
    {{- end }}
    {{- with .group.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The chart's, without the names that the group sets itself, then the group's. Takes root, group, component. */}}
{{- define "muxfleet.env" -}}
{{- $own := default list .group.env -}}
{{- $names := list -}}
{{- range $own -}}{{- $names = append $names .name -}}{{- end -}}
{{- $env := list -}}
{{- range include "muxfleet.chartEnv" . | fromYamlArray -}}
{{- if not (has .name $names) -}}{{- $env = append $env . -}}{{- end -}}
{{- end -}}
{{- toYaml (concat $env $own) -}}
{{- end -}}

{{/* Ray and Serve read most of these when they are imported: head and workers must have the same. */}}
{{- define "muxfleet.chartEnv" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $shared := printf "%s/huggingface" (trimSuffix "/" $values.modelCache.mountPath) -}}
{{- $readsOnly := eq (include "muxfleet.readsOnly" $root) "true" -}}
{{- $isShared := and $values.modelCache.enabled (not $readsOnly) -}}
- {name: HOME, value: /var/lib/muxfleet}
- {name: XDG_CACHE_HOME, value: /var/lib/muxfleet/.cache}
{{- if ne $values.rayAuth.mode "token" }}
# rayAuth.allowDisabled: without it muxfleet's applications refuse a cluster that asks for no token.
- {name: MUXFLEET_ALLOW_OPEN_RAY, value: "1"}
{{- end }}
- {name: TRITON_CACHE_DIR, value: /var/lib/muxfleet/.cache/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /var/lib/muxfleet/.cache/torchinductor}
- {name: HF_HOME, value: {{ ternary $shared "/var/lib/muxfleet/huggingface" $isShared }}}
{{- if $readsOnly }}
# What the library writes besides goes to HF_HOME.
- {name: HF_HUB_CACHE, value: {{ printf "%s/hub" $shared }}}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
# A replica whose loop stands is ended at once: asked gently, it would have until the end of its drain.
- {name: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS, value: "1"}
# On SIGTERM Ray drains a worker for so long; the head, which runs nothing of ours, goes at once and is back the sooner.
- {name: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S, value: {{ include "muxfleet.nodeDrainSeconds" . | quote }}}
# What workers say goes into one file each, five of 64 MiB: without a bound of one's own Ray begins no new ones.
- {name: RAY_ROTATION_MAX_BYTES, value: "67108864"}
- {name: RAY_ROTATION_BACKUP_COUNT, value: "4"}
# Ray's default of 15 lets any other program on the node starve the engine.
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, value: "0"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- if ne (include "muxfleet.fleet" $root | fromJson).gateway.proxy "python" }}
{{- range $name, $value := (include "muxfleet.data" $root | fromJson).haproxyEnvironment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
- {name: RAY_SERVE_HAPROXY_BINARY_PATH, value: /opt/muxfleet/bin/muxfleet-haproxy}
{{- end }}
{{- with $values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $values.huggingFace.key | quote }}}}
{{- end }}
{{- end -}}

{{/* Takes root, component. */}}
{{- define "muxfleet.nodeDrainSeconds" -}}
{{- $drain := (include "muxfleet.fleet" .root | fromJson).drain -}}
{{- if eq .component "head" -}}0{{- else -}}
{{- include "muxfleet.drainSeconds" (dict "data" (include "muxfleet.data" .root | fromJson) "drain" $drain "of" "node") -}}
{{- end -}}
{{- end -}}

{{/* In whole seconds. Takes root, fleet. */}}
{{- define "muxfleet.podDrainSeconds" -}}
{{- include "muxfleet.drainSeconds" (dict "data" (include "muxfleet.data" .root | fromJson) "drain" .fleet.drain "of" "pod") | float64 | ceil | int64 -}}
{{- end -}}

{{- define "muxfleet.topologySpread" -}}
{{- $labels := dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .component -}}
{{- with .pool -}}{{- $_ := set $labels "muxfleet.io/pool" . -}}{{- end -}}
{{- $constraints := list -}}
{{- range .group.topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge (deepCopy .) (dict "labelSelector" (dict "matchLabels" $labels))) -}}
{{- end -}}
{{- with $constraints -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{- define "muxfleet.headGroup" -}}
{{- $port := (include "muxfleet.fleet" . | fromJson).gateway.port | int64 -}}
{{- $ports := list
  (dict "name" "gcs-server" "containerPort" 6379)
  (dict "name" "dashboard" "containerPort" 8265)
  (dict "name" "client" "containerPort" 10001)
  (dict "name" "serve" "containerPort" $port)
  (dict "name" "metrics" "containerPort" 8080)
  (dict "name" "as-metrics" "containerPort" 44217)
  (dict "name" "dash-metrics" "containerPort" 44227) -}}
rayStartParams:
  num-cpus: "0"
template:
  {{- include "muxfleet.labelledTemplate" (dict "root" . "group" .Values.head "component" "head" "pool" "" "ports" $ports "resources" .Values.head.resources "labels" dict) | nindent 2 }}
{{- end -}}

{{/* The values of one pool's pods: `workers`, and what pools.NAME says instead. Takes root, pool (its name). */}}
{{- define "muxfleet.group" -}}
{{- $group := deepCopy .root.Values.workers -}}
{{- range $key, $value := default dict (get .root.Values.pools .pool) -}}{{- $_ := set $group $key $value -}}{{- end -}}
{{- toJson $group -}}
{{- end -}}

{{/*
Requests and limits of a pool's Ray container, without its GPUs. What is named on one side only is left so: Kubernetes takes
a limit for the request, too. Takes group, pool.
*/}}
{{- define "muxfleet.groupResources" -}}
{{- $resources := deepCopy (default dict .group.resources) -}}
{{- $devices := ternary (.pool.gpus_per_node | int64) 1 (eq .pool.device "cuda") -}}
{{- $requests := default dict $resources.requests -}}
{{- $limits := default dict $resources.limits -}}
{{- range $name, $amount := dict "cpu" (printf "%d" (mul 4 $devices)) "memory" (printf "%dGi" (mul 16 $devices)) -}}
{{- if not (or (hasKey $requests $name) (hasKey $limits $name)) -}}
{{- $_ := set $requests $name $amount -}}
{{- $_ := set $limits $name $amount -}}
{{- end -}}
{{- end -}}
{{- toJson (merge (dict "requests" $requests "limits" $limits) $resources) -}}
{{- end -}}

{{/* Takes root, fleet, pool. */}}
{{- define "muxfleet.workerGroup" -}}
{{- $values := .root.Values -}}
{{- $group := include "muxfleet.group" (dict "root" .root "pool" .pool.name) | fromJson -}}
{{- $resources := include "muxfleet.groupResources" (dict "group" $group "pool" .pool) | fromJson -}}
{{- if eq .pool.device "cuda" -}}
{{- $gpus := dict $group.gpuResource (.pool.gpus_per_node | int64) -}}
{{- $resources = mergeOverwrite $resources (dict "limits" $gpus "requests" (deepCopy $gpus)) -}}
{{- end -}}
{{- $ports := list
  (dict "name" "serve" "containerPort" (.fleet.gateway.port | int64))
  (dict "name" "metrics" "containerPort" 8080) -}}
{{- $derived := include "muxfleet.podDrainSeconds" (dict "root" .root "fleet" .fleet) | int64 -}}
{{- $grace := default $derived $group.terminationGracePeriodSeconds -}}
groupName: {{ toYaml .pool.name }}
replicas: {{ .pool.nodes.min | int64 }}
minReplicas: {{ .pool.nodes.min | int64 }}
maxReplicas: {{ default .pool.nodes.min .pool.nodes.max | int64 }}
{{- if $values.autoscaling.enabled }}
idleTimeoutSeconds: {{ default $values.autoscaling.idleTimeoutSeconds $group.idleTimeoutSeconds | int64 }}
{{- end }}
{{- with .pool.node_labels }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
rayStartParams:
  {{- if eq .pool.device "cuda" }}
  # KubeRay and Ray's autoscaler know GPUs by what a resource's name ends with, and not all the same.
  num-gpus: {{ .pool.gpus_per_node | int64 | toString | quote }}
  {{- else }} {}
  {{- end }}
template:
  {{- include "muxfleet.labelledTemplate" (dict "gatewayPort" .fleet.gateway.port "root" .root "group" $group "component" "worker" "pool" .pool.name "ports" $ports "resources" $resources "grace" $grace "labels" .pool.node_labels) | nindent 2 }}
{{- end -}}
