{{/* Files that pods look for where nothing is mounted, and a cache that their nodes cannot share. */}}
{{- define "muxfleet.checkFolders" -}}
{{- $root := .root -}}
{{- $cache := .root.Values.modelCache -}}
{{- range $i, $model := .root.Values.fleet.models -}}
{{- $source := default "" (coalesce $model.source $model.adapter) -}}
{{- if or (hasPrefix "./" $source) (hasPrefix "../" $source) (has $source (list "." "..")) -}}
{{- $folder := clean (printf "%s/%s" $cache.mountPath $source) -}}
{{- $place := ternary (printf "a folder below %s" $cache.mountPath) (printf "the folder %s" $folder) (hasPrefix (printf "%s/" (clean $cache.mountPath)) $folder) -}}
{{- with include "muxfleet.poolWithout" (dict "root" $root "fleet" $.fleet "path" $folder) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.models[%d].%s" $i (ternary "source" "adapter" (not $model.adapter))) "value" $source "remedy" (printf "%s, where pods of pool %s have nothing mounted; switch modelCache.enabled on, or write a Hugging Face id" $place .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $i, $pool := .root.Values.fleet.pools -}}
{{- range $key := list "profile" "guard" -}}
{{- $file := default "" (get $pool $key) -}}
{{- if and $file (not (isAbs $file)) -}}
{{- with include "muxfleet.poolWithout" (dict "root" $root "fleet" $.fleet "path" (clean (printf "%s/%s" $cache.mountPath $file))) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.pools[%d].%s" $i $key) "value" $file "remedy" (printf "a file below %s, where pods of pool %s have nothing mounted; switch modelCache.enabled on, or remove it" $cache.mountPath .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .fleet.gateway.api_keys -}}
{{- $keys := . -}}
{{- with include "muxfleet.poolWithout" (dict "root" $root "fleet" $.fleet "path" $keys) -}}
{{- include "muxfleet.refuse" (dict "key" "fleet.gateway.api_keys" "value" $root.Values.fleet.gateway.api_keys "remedy" (printf "pods of pool %s have no Secret or volume there; name the Secret in apiKeys.existingSecret and write /etc/muxfleet/api-keys/KEY" .)) -}}
{{- end -}}
{{- end -}}
{{- if and $cache.enabled (has (clean $cache.mountPath) (list "/tmp" "/var/lib/muxfleet" "/etc/muxfleet/api-keys" "/dev/shm")) -}}
{{- include "muxfleet.refuse" (dict "key" "modelCache.mountPath" "value" $cache.mountPath "remedy" "the pods have another volume there; choose another path, for example /models") -}}
{{- end -}}
{{- if and $cache.readOnly (not $cache.existingClaim) -}}
{{- include "muxfleet.refuse" (dict "key" "modelCache.readOnly" "value" true "remedy" "a claim that the chart makes is empty, and nothing could be written into it; name a filled one in modelCache.existingClaim") -}}
{{- end -}}
{{- range $key, $folder := dict "state.folder" (eq .fleet.state.store "file" | ternary .fleet.state.folder "") "gateway.batches.folder" (default "" .fleet.gateway.batches.folder) -}}
{{- if and $folder (not (contains "://" $folder)) (not (hasPrefix "/tmp/" (printf "%s/" $folder))) (not (hasPrefix "/var/lib/muxfleet/" (printf "%s/" $folder))) -}}
{{- with include "muxfleet.poolWithout" (dict "root" $root "fleet" $.fleet "path" $folder) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.%s" $key) "value" $folder "remedy" (printf "is written to, and pods of pool %s have nothing mounted there; switch modelCache.enabled on and name a folder below %s, or name one of a volume of yours" . $cache.mountPath)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if include "muxfleet.readsOnly" $root -}}
{{- range $key, $folder := dict "state.folder" (default "" .fleet.state.folder) "gateway.batches.folder" (default "" .fleet.gateway.batches.folder) -}}
{{- if hasPrefix (printf "%s/" (clean $cache.mountPath)) (printf "%s/" $folder) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "fleet.%s" $key) "value" $folder "remedy" "is written to, and pods mount the model cache to read from only; name a folder of a volume of yours") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $cache.enabled (not $cache.existingClaim) (not (has "ReadWriteMany" $cache.accessModes)) -}}
{{- if not (has "ReadWriteOnce" $cache.accessModes) -}}
{{- include "muxfleet.refuse" (dict "key" "modelCache.accessModes" "value" $cache.accessModes "remedy" "the chart makes this claim, and nothing could be written into it; write [ReadWriteMany], or name a filled claim in modelCache.existingClaim") -}}
{{- end -}}
{{- $nodes := 0 -}}
{{- range include "muxfleet.groups" $root | fromJsonArray -}}{{- $nodes = add $nodes (default .nodes.min .nodes.max | int64) -}}{{- end -}}
{{- if gt ($nodes | int64) 1 -}}
{{- include "muxfleet.refuse" (dict "key" "modelCache.accessModes" "value" $cache.accessModes "remedy" (printf "the fleet has %d nodes, which all mount the claim; write [ReadWriteMany], or name a claim that they can share in modelCache.existingClaim" ($nodes | int64))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The first pool whose pods have nothing mounted at or above a path; empty when all have. Takes root, fleet, path. */}}
{{- define "muxfleet.poolWithout" -}}
{{- $root := .root -}}
{{- $path := printf "%s/" (clean .path) -}}
{{- $without := "" -}}
{{- range $pool := include "muxfleet.groups" $root | fromJsonArray -}}
{{- $folders := list -}}
{{- if $root.Values.modelCache.enabled -}}{{- $folders = append $folders $root.Values.modelCache.mountPath -}}{{- end -}}
{{- if $root.Values.apiKeys.existingSecret -}}{{- $folders = append $folders "/etc/muxfleet/api-keys" -}}{{- end -}}
{{- range (include "muxfleet.group" (dict "root" $root "pool" $pool.name) | fromJson).volumeMounts -}}{{- $folders = append $folders .mountPath -}}{{- end -}}
{{- $isMounted := false -}}
{{- range $folders -}}{{- if hasPrefix (printf "%s/" (clean .)) $path -}}{{- $isMounted = true -}}{{- end -}}{{- end -}}
{{- if and (not $isMounted) (not $without) -}}{{- $without = $pool.name -}}{{- end -}}
{{- end -}}
{{- $without -}}
{{- end -}}
