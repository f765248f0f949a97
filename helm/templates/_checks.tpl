{{/* What the schema cannot say. Each message names the value and the remedy. */}}
{{- define "muxfleet.checks" -}}
{{- $fleet := include "muxfleet.fleet" . | fromJson -}}
{{- include "muxfleet.checkModels" $fleet -}}
{{- include "muxfleet.checkPools" (dict "root" . "fleet" $fleet) -}}
{{- include "muxfleet.checkGateway" (dict "root" . "fleet" $fleet) -}}
{{- include "muxfleet.checkCluster" . -}}
{{- include "muxfleet.checkRoutes" . -}}
{{- include "muxfleet.checkAddresses" . -}}
{{- include "muxfleet.checkPods" (dict "root" . "fleet" $fleet) -}}
{{- include "muxfleet.checkObjectLabels" . -}}
{{- include "muxfleet.checkFolders" (dict "root" . "fleet" $fleet) -}}
{{- $ids := list -}}
{{- range $fleet.models -}}{{- $ids = append $ids .id -}}{{- end -}}
{{- if and .Values.tests.model (not (has .Values.tests.model $ids)) -}}
{{- include "muxfleet.refuse" (dict "key" "tests.model" "value" .Values.tests.model "remedy" (printf "no model of the fleet; it has %s" (join ", " $ids))) -}}
{{- end -}}
{{- if and .Values.tests.enabled $fleet.gateway.api_keys (not (include "muxfleet.isRolling" .)) (not (include "muxfleet.testsKey" .)) -}}
{{- include "muxfleet.refuse" (dict "key" "tests.existingSecret" "value" "" "remedy" "helm test asks the gateway, which asks for keys; name a Secret with one, or set tests.enabled: false") -}}
{{- end -}}
{{- if and (include "muxfleet.isRolling" .) $fleet.gateway.api_keys (not .Values.upgrade.existingSecret) -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.existingSecret" "value" "" "remedy" "the rolling update asks the gateway, which asks for keys, whether the fleet is whole; name a Secret with a key made by muxfleet keys new --admin, or choose another upgrade.strategy") -}}
{{- end -}}
{{- end -}}

{{/* That no default is gone, before a template stumbles over it. */}}
{{- define "muxfleet.checkWhole" -}}
{{- range $path := .Files.Get "files/needed-values.json" | fromJsonArray -}}
{{- $node := $.Values -}}
{{- $isThere := true -}}
{{- range $key := splitList "." $path -}}
{{- if and $isThere (kindIs "map" $node) (hasKey $node $key) -}}{{- $node = get $node $key -}}{{- else -}}{{- $isThere = false -}}{{- end -}}
{{- end -}}
{{- if not $isThere -}}
{{- include "muxfleet.refuse" (dict "key" $path "value" nil "remedy" "missing; --reuse-values takes the values of the former chart, which may have had no such key: upgrade with --reset-then-reuse-values, or name your file of values again. Where you wrote null, write a value, or nothing for the default") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.refuse" -}}
{{- fail (printf "\n\nmuxfleet: %s = %s: %s\n" .key (toJson .value) .remedy) -}}
{{- end -}}

{{- define "muxfleet.checkModels" -}}
{{- $seen := dict -}}
{{- range $i, $model := .models -}}
{{- $key := printf "fleet.models[%d]" $i -}}
{{- if hasKey $seen $model.id -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.id" $key) "value" $model.id "remedy" (printf "also fleet.models[%d].id; choose another" (get $seen $model.id))) -}}
{{- end -}}
{{- $_ := set $seen $model.id $i -}}
{{- if lt ($model.replicas.max | int64) ($model.replicas.min | int64) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.replicas.max" $key) "value" $model.replicas.max "remedy" (printf "smaller than min (%d); raise it or lower min" ($model.replicas.min | int64))) -}}
{{- end -}}
{{- include "muxfleet.checkAdapter" (dict "model" $model "models" $.models "key" $key) -}}
{{- if hasPrefix "~" $model.source -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.source" $key) "value" $model.source "remedy" "pods have no home of yours; write a Hugging Face id, or a folder below modelCache.mountPath") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A model with a base, or one that has neither source nor base. Takes model, models, key. */}}
{{- define "muxfleet.checkAdapter" -}}
{{- $model := .model -}}
{{- if and $model.adapter (not $model.base) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.adapter" .key) "value" $model.adapter "remedy" "needs a base: name the model of this file that it was trained on") -}}
{{- end -}}
{{- if $model.base -}}
{{- $bases := list -}}
{{- range .models -}}{{- if not .base -}}{{- $bases = append $bases .id -}}{{- end -}}{{- end -}}
{{- if not (has $model.base $bases) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.base" .key) "value" $model.base "remedy" (printf "is no model of the fleet, or an adapter itself; it has %s" (join ", " $bases))) -}}
{{- end -}}
{{- if not $model.adapter -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.base" .key) "value" $model.base "remedy" "is for adapters; write adapter: FOLDER beside it, or remove it") -}}
{{- end -}}
{{- end -}}
{{- if not $model.source -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.source" .key) "value" "" "remedy" "required, but missing") -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkPools" -}}
{{- $root := .root -}}
{{- $fleet := .fleet -}}
{{- $seen := dict -}}
{{- $roles := list -}}
{{- range $fleet.pools -}}{{- $roles = append $roles (default "" .role) -}}{{- end -}}
{{- $roles = compact $roles -}}
{{- range $i, $pool := $fleet.pools -}}
{{- $key := printf "fleet.pools[%d]" $i -}}
{{- if hasKey $seen $pool.name -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.name" $key) "value" $pool.name "remedy" (printf "also fleet.pools[%d].name; choose another" (get $seen $pool.name))) -}}
{{- end -}}
{{- $_ := set $seen $pool.name $i -}}
{{- if eq $pool.name "headgroup" -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.name" $key) "value" $pool.name "remedy" "KubeRay calls the head's group so; choose another") -}}
{{- end -}}
{{- $backend := default $fleet.engine.backend $pool.backend -}}
{{- $refusals := (include "muxfleet.data" $root | fromJson).refusals -}}
{{- $undivided := get $refusals.mesh (printf "%s %s" $backend $pool.device) -}}
{{- if and $undivided (gt ($pool.mesh_gpus | int64) 1) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.mesh_gpus" $key) "value" $pool.mesh_gpus "remedy" $undivided) -}}
{{- end -}}
{{- if or (eq $backend "sglang") (and (ne $pool.device "simulated") (gt ($pool.mesh_gpus | int64) 1)) -}}
{{- range $j, $model := $fleet.models -}}
{{- if $model.base -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.models[%d].base" $j) "value" $model.base "remedy" (printf "units of pool %q take no adapters (backend sglang, or mesh_gpus above 1), and may be given the base; serve it in a fleet without such a pool" $pool.name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $roles -}}
{{- include "muxfleet.checkRole" (dict "pool" $pool "roles" $roles "backend" $backend "key" (printf "%s.role" $key)) -}}
{{- end -}}
{{- include "muxfleet.checkPool" (dict "root" $root "pool" $pool "key" $key) -}}
{{- include "muxfleet.checkLabelWords" (dict "path" (printf "%s.node_labels" $key) "labels" $pool.node_labels) -}}
{{- if and (gt (len $fleet.pools) 1) (ne $pool.device "simulated") (not $pool.node_labels) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.node_labels" $key) "value" (dict) "remedy" (printf "with several pools each needs its own, so that its units run on its nodes; for example {muxfleet.io/pool: %s}" $pool.name)) -}}
{{- end -}}
{{- end -}}
{{- if $root.Values.gateways.nodes | int64 -}}{{- $_ := set $seen "gateways" -1 -}}{{- end -}}
{{- range $name, $override := $root.Values.pools -}}
{{- if not (hasKey $seen $name) -}}
{{- include "muxfleet.refuse" (dict "key" "pools" "value" $name "remedy" (printf "no fleet pool has this name; known: %s" (keys $seen | sortAlpha | join ", "))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkRole" -}}
{{- $role := default "" .pool.role -}}
{{- $wanting := ternary "decode" "prefill" (eq $role "prefill") -}}
{{- if not $role -}}
{{- include "muxfleet.refuse" (dict "key" .key "value" $role "remedy" "other pools have a role, and this one has none; set prefill or decode here, or remove theirs") -}}
{{- else if or (ne .backend "native") (ne .pool.device "cpu") (gt (.pool.mesh_gpus | int64) 1) -}}
{{- include "muxfleet.refuse" (dict "key" .key "value" $role "remedy" "KV of these units cannot be moved; only that of backend native on cpu with mesh_gpus 1; remove it") -}}
{{- else if not (has $wanting .roles) -}}
{{- include "muxfleet.refuse" (dict "key" .key "value" $role "remedy" (printf "no pool has role %s; give one that role, or remove this one" $wanting)) -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkPool" -}}
{{- $key := .key -}}
{{- $pool := .pool -}}
{{- if and (ne $pool.device "cpu") (mod ($pool.gpus_per_node | int64) ($pool.mesh_gpus | int64)) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.mesh_gpus" $key) "value" $pool.mesh_gpus "remedy" (printf "must divide gpus_per_node (%d)" ($pool.gpus_per_node | int64))) -}}
{{- end -}}
{{- $max := default $pool.nodes.min $pool.nodes.max | int64 -}}
{{- if lt $max ($pool.nodes.min | int64) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.nodes.max" $key) "value" $max "remedy" (printf "smaller than min (%d); raise it or lower min" ($pool.nodes.min | int64))) -}}
{{- end -}}
{{- if and $pool.scaling (eq $max ($pool.nodes.min | int64)) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.scaling" $key) "value" $pool.scaling "remedy" (printf "this pool always has %d nodes; set nodes.max above nodes.min, or remove it" $max)) -}}
{{- end -}}
{{- with $pool.scaling -}}
{{- if and .spot .cost_per_hour -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.scaling.cost_per_hour" $key) "value" .cost_per_hour "remedy" "spot.price_per_hour says what a node costs; remove this, or spot") -}}
{{- end -}}
{{- end -}}
{{- range $i, $entry := (default dict $pool.scaling).schedule -}}
{{- if gt ($entry.nodes | int64) $max -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.scaling.schedule[%d].nodes" $key $i) "value" $entry.nodes "remedy" (printf "more than nodes.max (%d); lower it or raise nodes.max" $max)) -}}
{{- end -}}
{{- end -}}
{{- if and (gt $max ($pool.nodes.min | int64)) (not .root.Values.autoscaling.enabled) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.nodes.max" $key) "value" $max "remedy" (printf "above min (%d), but autoscaling.enabled is false; switch it on or make them equal" ($pool.nodes.min | int64))) -}}
{{- end -}}
{{- if and (gt $max ($pool.nodes.min | int64)) (ne $pool.device "cuda") (not $pool.node_labels) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.node_labels" $key) "value" (dict) "remedy" (printf "of a pool without GPUs one pod would take all units, and none would be added; give it labels of its own, for example {muxfleet.io/pool: %s}" $pool.name)) -}}
{{- end -}}
{{- if and (eq $pool.device "cpu") (ne ($pool.gpus_per_node | int64) 1) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.gpus_per_node" $key) "value" $pool.gpus_per_node "remedy" "a cpu pool has one device per node; remove it") -}}
{{- end -}}
{{- if and (eq $pool.device "cpu") $pool.cores (mod (default 0 $pool.cores | int64) ($pool.mesh_gpus | int64)) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.cores" $key) "value" $pool.cores "remedy" (printf "each of mesh_gpus (%d) ranks has as many; set a multiple of it" ($pool.mesh_gpus | int64))) -}}
{{- end -}}
{{- if and (eq $pool.device "cpu") $pool.gpu_type -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.gpu_type" $key) "value" $pool.gpu_type "remedy" "a cpu pool has no GPUs; remove it") -}}
{{- end -}}
{{- $known := (include "muxfleet.data" .root | fromJson).gpuTypes -}}
{{- if and $pool.gpu_type (not (has (lower (default "" $pool.gpu_type)) (splitList " " (lower (join " " $known))))) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.gpu_type" $key) "value" $pool.gpu_type "remedy" (printf "unknown device; known: %s" (join ", " $known))) -}}
{{- end -}}
{{- if and (ne $pool.device "cpu") $pool.cores -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.cores" $key) "value" $pool.cores "remedy" "only for cpu pools; remove it") -}}
{{- end -}}
{{- $gpuBytes := get (include "muxfleet.data" .root | fromJson).gpuBytes (lower (default "" $pool.gpu_type)) -}}
{{- if and $gpuBytes $pool.kv_memory (not $pool.device_memory) -}}
{{- $bytes := mul ($gpuBytes | int64) ($pool.mesh_gpus | int64) -}}
{{- if ge ($pool.kv_memory | int64) $bytes -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.kv_memory" $key) "value" $pool.kv_memory "remedy" (printf "leaves nothing of the unit's memory for weights (%s: %d bytes); lower it" $pool.gpu_type $bytes)) -}}
{{- end -}}
{{- end -}}
{{- if and $pool.device_memory $pool.kv_memory -}}
{{- if ge ($pool.kv_memory | int64) ($pool.device_memory | int64) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.kv_memory" $key) "value" $pool.kv_memory "remedy" "leaves no device_memory for weights; lower it") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Nodes of gateways alone. Takes root, fleet. */}}
{{- define "muxfleet.checkGatewayNodes" -}}
{{- $labels := .fleet.gateway.node_labels -}}
{{- $nodes := .root.Values.gateways.nodes | int64 -}}
{{- if and $nodes (not $labels) -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.node_labels" "value" (dict) "remedy" "gateways.nodes are there for gateways: name labels of these nodes, so that they run on them; for example {muxfleet.io/gateways: own}") -}}
{{- end -}}
{{- $isHeld := gt $nodes 0 -}}
{{- range $i, $pool := .fleet.pools -}}
{{- if and $nodes (eq $pool.name "gateways") -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.pools[%d].name" $i) "value" $pool.name "remedy" "gateways.nodes has a group of this name; choose another") -}}
{{- end -}}
{{- if and $nodes (eq $pool.device "cpu") (not $pool.node_labels) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.pools[%d].node_labels" $i) "value" (dict) "remedy" (printf "its units would also run on gateways.nodes; name labels of its own, for example {muxfleet.io/pool: %s}" $pool.name)) -}}
{{- end -}}
{{- $has := true -}}
{{- range $key, $value := $labels -}}{{- if ne (get (default dict $pool.node_labels) $key) $value -}}{{- $has = false -}}{{- end -}}{{- end -}}
{{- if $has -}}{{- $isHeld = true -}}{{- end -}}
{{- end -}}
{{- if not $isHeld -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.node_labels" "value" $labels "remedy" "no pool's nodes have these labels; set gateways.nodes, or remove them") -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkGateway" -}}
{{- include "muxfleet.checkGatewayNodes" . -}}
{{- $host := .fleet.gateway.host -}}
{{- if or (hasPrefix "127." $host) (has $host (list "localhost" "::1")) -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.host" "value" $host "remedy" "other pods cannot reach it; leave it out, or write 0.0.0.0") -}}
{{- end -}}
{{- if not (has $host (list "0.0.0.0" "::")) -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.host" "value" $host "remedy" "no address that every pod has; leave it out, or write 0.0.0.0, or :: on clusters of IPv6 alone") -}}
{{- end -}}
{{- $keys := default "" .fleet.gateway.api_keys -}}
{{- if and .root.Values.apiKeys.existingSecret (not (hasPrefix "/etc/muxfleet/api-keys/" $keys)) -}}
{{- include "muxfleet.refuse" (dict "key" "apiKeys.existingSecret" "value" .root.Values.apiKeys.existingSecret "remedy" "the gateways do not read it; set fleet.gateway.api_keys to /etc/muxfleet/api-keys/KEY, with KEY of the Secret") -}}
{{- end -}}
{{- if has (.fleet.gateway.port | int64 | toString) (list "6379" "8080" "8265" "10001" "44217" "44227" "52365") | or (and (ge (.fleet.gateway.port | int64) 10002) (le (.fleet.gateway.port | int64) 19999)) -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.port" "value" .fleet.gateway.port "remedy" "Ray uses this port in its pods; choose another, for example 8000") -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkCluster" -}}
{{- $upgrade := .Values.upgrade -}}
{{- if include "muxfleet.isIncremental" . -}}
{{- if not .Values.autoscaling.enabled -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.strategy" "value" $upgrade.strategy "remedy" "KubeRay needs autoscaling.enabled: true for it") -}}
{{- end -}}
{{- if not $upgrade.gatewayClassName -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.gatewayClassName" "value" "" "remedy" "name the class of your Gateway API controller (kubectl get gatewayclass)") -}}
{{- end -}}
{{- if gt ($upgrade.stepSizePercent | int64) ($upgrade.maxSurgePercent | int64) -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.stepSizePercent" "value" $upgrade.stepSizePercent "remedy" (printf "above maxSurgePercent (%d); lower it" ($upgrade.maxSurgePercent | int64))) -}}
{{- end -}}
{{- else if $upgrade.gatewayClassName -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.gatewayClassName" "value" $upgrade.gatewayClassName "remedy" "only for upgrade.strategy: NewClusterWithIncrementalUpgrade; remove it or change the strategy") -}}
{{- end -}}
{{- if and $upgrade.existingSecret (not (include "muxfleet.isRolling" .)) -}}
{{- include "muxfleet.refuse" (dict "key" "upgrade.existingSecret" "value" $upgrade.existingSecret "remedy" "only for upgrade.strategy: RollingUpdate; remove it or change the strategy") -}}
{{- end -}}
{{- if and .Values.redis.existingSecret (not .Values.redis.address) -}}
{{- include "muxfleet.refuse" (dict "key" "redis.existingSecret" "value" .Values.redis.existingSecret "remedy" "there is no redis.address; set it or remove the Secret") -}}
{{- end -}}
{{- if and .Values.rayAuth.existingSecret (ne .Values.rayAuth.mode "token") -}}
{{- include "muxfleet.refuse" (dict "key" "rayAuth.existingSecret" "value" .Values.rayAuth.existingSecret "remedy" "only for rayAuth.mode: token; remove it or change the mode") -}}
{{- end -}}
{{- if and (ne .Values.rayAuth.mode "token") (not .Values.rayAuth.allowDisabled) -}}
{{- include "muxfleet.refuse" (dict "key" "rayAuth.mode" "value" .Values.rayAuth.mode "remedy" "every pod that reaches the cluster could run code in it; leave it at token, or set rayAuth.allowDisabled if a network policy keeps all others out") -}}
{{- end -}}
{{- if and .Values.modelCache.existingClaim (not .Values.modelCache.enabled) -}}
{{- include "muxfleet.refuse" (dict "key" "modelCache.existingClaim" "value" .Values.modelCache.existingClaim "remedy" "modelCache.enabled is false; switch it on or remove the claim") -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) .Values.autoscaling.enabled -}}
{{- include "muxfleet.refuse" (dict "key" "serviceAccount.name" "value" "" "remedy" "KubeRay gives the autoscaler's rights to it; name one that is there, or set serviceAccount.create") -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.checkRoutes" -}}
{{- $incremental := include "muxfleet.isIncremental" . -}}
{{- $gateway := printf "%s-gateway" (include "muxfleet.fullname" .) -}}
{{- range $key := list "ingress" "httpRoute" -}}
{{- if and $incremental (index $.Values $key "enabled") -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.enabled" $key) "value" true "remedy" (printf "with the incremental upgrade KubeRay makes the Gateway %s with a route of its own and changes Services under it; use that Gateway, or another upgrade.strategy" $gateway)) -}}
{{- end -}}
{{- end -}}
{{- if and $incremental (ne .Values.service.type "ClusterIP") -}}
{{- include "muxfleet.refuse" (dict "key" "service.type" "value" .Values.service.type "remedy" (printf "KubeRay ignores it with the incremental upgrade; use the Gateway %s" $gateway)) -}}
{{- end -}}
{{- if and $incremental .Values.service.spec -}}
{{- include "muxfleet.refuse" (dict "key" "service.spec" "value" .Values.service.spec "remedy" (printf "KubeRay ignores it with the incremental upgrade; use the Gateway %s" $gateway)) -}}
{{- end -}}
{{- with .Values.service.spec.type -}}
{{- include "muxfleet.refuse" (dict "key" "service.spec.type" "value" . "remedy" "write it as service.type") -}}
{{- end -}}
{{- range $key := list "selector" "ports" -}}
{{- with get $.Values.service.spec $key -}}
{{- include "muxfleet.refuse" (dict "key" (printf "service.spec.%s" $key) "value" . "remedy" "KubeRay sets it; remove it, or make a Service in extraObjects") -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled .Values.httpRoute.enabled -}}
{{- include "muxfleet.refuse" (dict "key" "httpRoute.enabled" "value" true "remedy" "ingress.enabled is true too; choose one way in") -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- include "muxfleet.refuse" (dict "key" "httpRoute.parentRefs" "value" (list) "remedy" "name the Gateway that takes the route, for example [{name: public, namespace: infra}]") -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1/HTTPRoute")) (not (.Capabilities.APIVersions.Has "gateway.networking.k8s.io/v1")) -}}
{{- include "muxfleet.refuse" (dict "key" "httpRoute.enabled" "value" true "remedy" "this cluster has no Gateway API (gateway.networking.k8s.io/v1); install its CRDs, or use ingress. With helm template: --api-versions gateway.networking.k8s.io/v1") -}}
{{- end -}}
{{- $monitoring := "monitoring.coreos.com/v1" -}}
{{- if and .Values.monitoring.podMonitor.enabled (not (.Capabilities.APIVersions.Has $monitoring)) -}}
{{- include "muxfleet.refuse" (dict "key" "monitoring.podMonitor.enabled" "value" true "remedy" (printf "this cluster has no prometheus-operator (%s); install it, or switch this off. With helm template: --api-versions %s" $monitoring $monitoring)) -}}
{{- end -}}
{{- if and .Values.monitoring.rules.enabled (not (.Capabilities.APIVersions.Has $monitoring)) -}}
{{- include "muxfleet.refuse" (dict "key" "monitoring.rules.enabled" "value" true "remedy" (printf "this cluster has no prometheus-operator (%s); install it, or switch this off. With helm template: --api-versions %s" $monitoring $monitoring)) -}}
{{- end -}}
{{- $interval := .Values.monitoring.podMonitor.interval -}}
{{- $seconds := trimSuffix "s" $interval | int64 -}}
{{- if hasSuffix "m" $interval -}}{{- $seconds = mul 60 (trimSuffix "m" $interval | int64) -}}{{- end -}}
{{- if hasSuffix "ms" $interval -}}{{- $seconds = div (trimSuffix "ms" $interval | int64) 1000 -}}{{- end -}}
{{- if and .Values.monitoring.podMonitor.enabled .Values.monitoring.rules.enabled (gt $seconds 120) -}}
{{- include "muxfleet.refuse" (dict "key" "monitoring.podMonitor.interval" "value" $interval "remedy" "rules look at the last five minutes, in which there must be two scrapes, or alerts never fire; write 2m at most, or switch monitoring.rules.enabled off") -}}
{{- end -}}
{{- end -}}
