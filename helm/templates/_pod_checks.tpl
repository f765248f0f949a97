{{/* Pods that Kubernetes would refuse, or that could not hold their fleet. */}}
{{- define "muxfleet.checkPods" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $kuberays := dict "RAY_REDIS_ADDRESS" "redis.address" "REDIS_USERNAME" "redis.username" "RAY_enable_autoscaler_v2" "autoscaling.enabled" -}}
{{- if $values.redis.address -}}{{- $_ := set $kuberays "REDIS_PASSWORD" "redis.existingSecret" -}}{{- end -}}
{{- include "muxfleet.checkResources" (dict "path" "autoscaling.resources" "resources" $values.autoscaling.resources) -}}
{{- include "muxfleet.checkResources" (dict "path" "upgrade.resources" "resources" $values.upgrade.resources) -}}
{{- include "muxfleet.checkGroup" (dict "root" $root "group" $values.head "own" dict "path" "head" "ownPath" "head") -}}
{{- range $i, $variable := $values.head.env -}}
{{- with get $kuberays $variable.name -}}
{{- include "muxfleet.refuse" (dict "key" (printf "head.env[%d].name" $i) "value" $variable.name "remedy" (printf "KubeRay makes no cluster with it; remove it and set %s" .)) -}}
{{- end -}}
{{- end -}}
{{- include "muxfleet.checkResources" (dict "path" "workers.resources" "resources" $values.workers.resources) -}}
{{- include "muxfleet.checkPodLabels" (dict "path" "workers.podLabels" "labels" $values.workers.podLabels) -}}
{{- range $i, $pool := include "muxfleet.groups" $root | fromJsonArray -}}
{{- $own := default dict (get $values.pools $pool.name) -}}
{{- $group := include "muxfleet.group" (dict "root" $root "pool" $pool.name) | fromJson -}}
{{- $ownPath := printf "pools.%s" $pool.name -}}
{{- include "muxfleet.checkGroup" (dict "root" $root "group" $group "own" $own "path" "workers" "ownPath" $ownPath) -}}
{{- $needed := include "muxfleet.podDrainSeconds" (dict "root" $root "fleet" $.fleet) | int64 -}}
{{- with $group.terminationGracePeriodSeconds -}}
{{- if lt (. | int64) $needed -}}
{{- $said := ternary $ownPath "workers" (hasKey $own "terminationGracePeriodSeconds") -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.terminationGracePeriodSeconds" $said) "value" . "remedy" (printf "below the %d s that fleet.drain adds up to; remove it, or lower fleet.drain" $needed)) -}}
{{- end -}}
{{- end -}}
{{- if eq $pool.device "cpu" -}}
{{- $kv := default (include "muxfleet.data" $root | fromJson).cpuKvBytes $pool.kv_memory -}}
{{- $resources := include "muxfleet.groupResources" (dict "group" $group "pool" $pool) | fromJson -}}
{{- with get $resources.limits "memory" -}}
{{- if ge ($kv | float64) (include "muxfleet.quantity" . | float64) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.pools[%d].kv_memory" $i) "value" ($kv | int64) "remedy" (printf "leaves nothing of its pods' memory for weights (%s.resources.limits.memory is %v); lower it or raise the limit" (ternary $ownPath "workers" (hasKey $own "resources")) .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes root, group, own (the keys that were said at ownPath, the others at path), path, ownPath. */}}
{{- define "muxfleet.checkGroup" -}}
{{- $call := . -}}
{{- $at := dict -}}
{{- range $key := list "resources" "podLabels" "nodeSelector" "env" "volumes" "volumeMounts" -}}
{{- $_ := set $at $key (printf "%s.%s" (ternary $call.ownPath $call.path (hasKey $call.own $key)) $key) -}}
{{- end -}}
{{- include "muxfleet.checkResources" (dict "path" $at.resources "resources" .group.resources) -}}
{{- include "muxfleet.checkPodLabels" (dict "path" $at.podLabels "labels" .group.podLabels) -}}
{{- include "muxfleet.checkLabelWords" (dict "path" $at.nodeSelector "labels" .group.nodeSelector) -}}
{{- $seen := dict -}}
{{- range $i, $variable := .group.env -}}
{{- if hasKey $seen $variable.name -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%d].name" $at.env $i) "value" $variable.name "remedy" (printf "also %s[%d].name; remove one of them" $at.env (get $seen $variable.name))) -}}
{{- end -}}
{{- $_ := set $seen $variable.name $i -}}
{{- end -}}
{{- $volumes := include "muxfleet.chartVolumes" (dict "root" .root "group" .group) | fromJsonArray -}}
{{- range $i, $volume := .group.volumes -}}
{{- if has $volume.name $volumes -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%d].name" $at.volumes $i) "value" $volume.name "remedy" "the pods have a volume of this name; choose another") -}}
{{- end -}}
{{- $volumes = append $volumes $volume.name -}}
{{- end -}}
{{- $paths := list "/tmp" "/var/lib/muxfleet" -}}
{{- if .root.Values.modelCache.enabled -}}{{- $paths = append $paths (clean .root.Values.modelCache.mountPath) -}}{{- end -}}
{{- if .root.Values.apiKeys.existingSecret -}}{{- $paths = append $paths "/etc/muxfleet/api-keys" -}}{{- end -}}
{{- if .group.shmSize -}}{{- $paths = append $paths "/dev/shm" -}}{{- end -}}
{{- range $i, $mount := .group.volumeMounts -}}
{{- if has (clean $mount.mountPath) $paths -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%d].mountPath" $at.volumeMounts $i) "value" $mount.mountPath "remedy" "another volume is mounted there; choose another path") -}}
{{- end -}}
{{- $paths = append $paths (clean $mount.mountPath) -}}
{{- if not (has $mount.name $volumes) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%d].name" $at.volumeMounts $i) "value" $mount.name "remedy" (printf "no volume of this name; add it to %s.volumes, or mount one of: %s" $call.ownPath (join ", " $volumes))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of the volumes that the chart itself gives to a pod, as podTemplate does. Takes root, group. */}}
{{- define "muxfleet.chartVolumes" -}}
{{- $volumes := list "tmp" "home" -}}
{{- if .root.Values.modelCache.enabled -}}{{- $volumes = append $volumes "models" -}}{{- end -}}
{{- if .root.Values.apiKeys.existingSecret -}}{{- $volumes = append $volumes "api-keys" -}}{{- end -}}
{{- if .group.shmSize -}}{{- $volumes = append $volumes "shm" -}}{{- end -}}
{{- toJson $volumes -}}
{{- end -}}

{{- define "muxfleet.checkPodLabels" -}}
{{- include "muxfleet.checkLabels" (dict "path" .path "labels" .labels "taken" (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "muxfleet.io/pool" "muxfleet.io/template")) -}}
{{- $call := . -}}
{{- range $name, $value := .labels -}}
{{- if hasPrefix "ray.io/" $name -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%s]" $call.path $name) "value" $value "remedy" "KubeRay sets labels below ray.io/; remove it or choose another name") -}}
{{- end -}}
{{- end -}}
{{- include "muxfleet.checkLabelWords" . -}}
{{- end -}}

{{/* Takes path, labels. */}}
{{- define "muxfleet.checkLabelWords" -}}
{{- $word := "[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?" -}}
{{- $domain := "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*" -}}
{{- $path := .path -}}
{{- range $name, $value := .labels -}}
{{- if not (and (regexMatch (printf "^(%s/)?%s$" $domain $word) $name) (regexMatch (printf "^(%s)?$" $word) $value)) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%s]" $path $name) "value" $value "remedy" "no label that Kubernetes takes; write letters, digits and ._- between letters or digits, at most 63, the name after a domain/ or none") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkObjectLabels" -}}
{{- $taken := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" -}}
{{- $monitoring := .Values.monitoring -}}
{{- include "muxfleet.checkLabels" (dict "path" "monitoring.podMonitor.labels" "labels" $monitoring.podMonitor.labels "taken" $taken) -}}
{{- include "muxfleet.checkLabels" (dict "path" "monitoring.rules.labels" "labels" $monitoring.rules.labels "taken" $taken) -}}
{{- include "muxfleet.checkLabels" (dict "path" "monitoring.dashboards.labels" "labels" $monitoring.dashboards.labels "taken" $taken) -}}
{{- end -}}

{{/* Takes path, labels, taken. */}}
{{- define "muxfleet.checkLabels" -}}
{{- $call := . -}}
{{- range $name, $value := .labels -}}
{{- if has $name $call.taken -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s[%s]" $call.path $name) "value" $value "remedy" "the chart sets this label and selects by it; remove it or choose another name") -}}
{{- end -}}
{{- end -}}
{{- end -}}
