{{/*
The Serve config that `muxfleet render` writes, from the fleet in the values. files/fleet.json (written by `make chart`)
knows the fleet file's types and defaults; a test compares the result with `muxfleet render`.
*/}}

{{/* One section with its defaults, sizes in bytes. Takes data, type, value, path. */}}
{{- define "muxfleet.section" -}}
{{- $data := .data -}}
{{- $value := .value -}}
{{- $path := .path -}}
{{- $out := dict -}}
{{- range $key, $field := index $data.types .type -}}
{{- $here := printf "%s.%s" $path $key -}}
{{- $v := get $field "default" -}}
{{- if not (hasKey $field "default") -}}{{- $v = list -}}{{- end -}}
{{- $isSet := hasKey $field "default" -}}
{{- if hasKey $value $key -}}
{{- if not (kindIs "invalid" (index $value $key)) -}}
{{- $v = index $value $key -}}
{{- $isSet = true -}}
{{- end -}}
{{- end -}}
{{- if and (eq $field.kind "bytes") (eq (toString $v) "auto") -}}{{- $isSet = false -}}{{- end -}}
{{- if $isSet -}}
{{- if eq $field.kind "section" -}}
{{- $v = include "muxfleet.section" (dict "data" $data "type" $field.type "value" $v "path" $here) | fromJson -}}
{{- else if eq $field.kind "sections" -}}
{{- $items := list -}}
{{- range $i, $item := $v -}}
{{- $items = append $items (include "muxfleet.section" (dict "data" $data "type" $field.type "value" $item "path" (printf "%s[%d]" $here $i)) | fromJson) -}}
{{- end -}}
{{- $v = $items -}}
{{- else if eq $field.kind "bytes" -}}
{{- $v = include "muxfleet.bytes" (dict "units" $data.byteUnits "value" $v "path" $here) | int64 -}}
{{- end -}}
{{- $_ := set $out $key $v -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* 256MiB as a number. Takes units, value, path. */}}
{{- define "muxfleet.bytes" -}}
{{- if kindIs "string" .value -}}
{{- $text := trim .value -}}
{{- $number := regexFind "^[0-9]*\\.?[0-9]+" $text -}}
{{- $unit := regexFind "^\\w+" (trim (trimPrefix $number $text)) | lower | default "b" -}}
{{- if not (hasKey .units $unit) -}}
{{- fail (printf "muxfleet: %s = %q: unknown unit %q; write a size such as 256MiB" .path .value $unit) -}}
{{- end -}}
{{- if contains "." $number -}}
{{- mulf ($number | float64) (get .units $unit) | floor | int64 -}}
{{- else -}}
{{- mul ($number | int64) (get .units $unit | int64) -}}
{{- end -}}
{{- else -}}
{{- .value | int64 -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.data" -}}{{- .Files.Get "files/fleet.json" -}}{{- end -}}

{{/* The fleet with all defaults and with sources as the pods find them. */}}
{{- define "muxfleet.fleet" -}}
{{- $data := include "muxfleet.data" . | fromJson -}}
{{- $fleet := include "muxfleet.section" (dict "data" $data "type" "FleetFile" "value" .Values.fleet "path" "fleet") | fromJson -}}
{{- range $fleet.models -}}
{{- if not .source -}}{{- $_ := set . "source" (default "" .adapter) -}}{{- end -}}
{{- if hasPrefix "/" .source -}}
{{- $_ := set . "source" (clean .source) -}}
{{- else if or (hasPrefix "./" .source) (hasPrefix "../" .source) (has .source (list "." "..")) -}}
{{- $_ := set . "source" (printf "%s/%s" $.Values.modelCache.mountPath .source | clean) -}}
{{- end -}}
{{- end -}}
{{- range $fleet.pools -}}
{{- if .profile -}}{{- $_ := set . "profile" (include "muxfleet.file" (dict "root" $ "path" .profile)) -}}{{- end -}}
{{- if .guard -}}{{- $_ := set . "guard" (include "muxfleet.file" (dict "root" $ "path" .guard)) -}}{{- end -}}
{{- with (default dict .scaling).forecast -}}
{{- if .trace -}}{{- $_ := set . "trace" (include "muxfleet.file" (dict "root" $ "path" .trace)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with $fleet.state.folder -}}
{{- $_ := set $fleet.state "folder" (include "muxfleet.file" (dict "root" $ "path" .)) -}}
{{- end -}}
{{- with $fleet.gateway.batches.folder -}}
{{- if not (contains "://" .) -}}
{{- $_ := set $fleet.gateway.batches "folder" (include "muxfleet.file" (dict "root" $ "path" .)) -}}
{{- end -}}
{{- end -}}
{{- with $fleet.gateway.api_keys -}}
{{- $_ := set $fleet.gateway "api_keys" (include "muxfleet.file" (dict "root" $ "path" .)) -}}
{{- end -}}
{{- toJson $fleet -}}
{{- end -}}

{{/* The groups of worker pods: the fleet's pools and, last, the nodes of gateways alone. */}}
{{- define "muxfleet.groups" -}}
{{- $fleet := include "muxfleet.fleet" . | fromJson -}}
{{- $groups := $fleet.pools -}}
{{- $nodes := .Values.gateways.nodes | int64 -}}
{{- if $nodes -}}
{{- $groups = append $groups (dict "name" "gateways" "device" "none" "gpus_per_node" 1 "nodes" (dict "min" $nodes) "node_labels" $fleet.gateway.node_labels) -}}
{{- end -}}
{{- toJson $groups -}}
{{- end -}}

{{/* A file of the fleet, as pods find it. Takes root, path. */}}
{{- define "muxfleet.file" -}}
{{- if hasPrefix "/" .path -}}{{- clean .path -}}{{- else -}}{{- printf "%s/%s" .root.Values.modelCache.mountPath .path | clean -}}{{- end -}}
{{- end -}}

{{- define "muxfleet.unitsOf" -}}
{{- if eq .device "cpu" -}}{{- .nodes.min | int64 -}}
{{- else -}}{{- div (mul (.nodes.min | int64) (.gpus_per_node | int64)) (.mesh_gpus | int64) -}}{{- end -}}
{{- end -}}

{{/* Seconds that what goes may take, as the fleet's drain says. Takes data, drain, of (unit, gateway, node, pod). */}}
{{- define "muxfleet.drainSeconds" -}}
{{- $moved := ternary 0.0 (.drain.move_s | float64) (eq .of "gateway") -}}
{{- addf (get .data.drainSeconds .of) $moved .drain.finish_s -}}
{{- end -}}

{{/* Arguments by the map of argument to section.key. Takes arguments, sections, nulls. */}}
{{- define "muxfleet.arguments" -}}
{{- $out := dict -}}
{{- $call := . -}}
{{- range $argument, $from := .arguments -}}
{{- $parts := splitList "." $from -}}
{{- $section := index $call.sections (first $parts) -}}
{{- if hasKey $section (last $parts) -}}
{{- $_ := set $out $argument (index $section (last $parts)) -}}
{{- else if $call.nulls -}}
{{- $_ := set $out $argument nil -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "muxfleet.serveConfig" -}}
{{- $data := include "muxfleet.data" . | fromJson -}}
{{- $fleet := include "muxfleet.fleet" . | fromJson -}}
{{- $applications := list -}}
{{- $expected := dict -}}
{{- $profiles := dict -}}
{{- $sizes := dict -}}
{{- $isElastic := false -}}
{{- range $pool := $fleet.pools -}}
{{- $units := include "muxfleet.unitsOf" $pool | int64 -}}
{{- $shape := include "muxfleet.arguments" (dict "arguments" $data.unitArguments "sections" (dict "pool" $pool "engine" $fleet.engine "fleet" $fleet) "nulls" false) | fromJson -}}
{{- if eq (default $fleet.engine.backend $pool.backend) "sglang" -}}
{{- $options := dict -}}
{{- range $key, $field := $data.types.SglangSection -}}
{{- if hasKey $pool.sglang $key -}}
{{- if ne (toJson (index $pool.sglang $key)) (toJson (get $field "default")) -}}{{- $_ := set $options $key (index $pool.sglang $key) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $shape "sglang" $options -}}
{{- end -}}
{{- $actor := dict "num_cpus" $data.smallCpus -}}
{{- if eq $pool.device "cpu" -}}{{- $_ := set $actor "num_cpus" (default $pool.mesh_gpus $pool.cores) -}}{{- end -}}
{{- if eq $pool.device "cuda" -}}{{- $_ := set $actor "num_gpus" $pool.mesh_gpus -}}{{- end -}}
{{- if $pool.node_labels -}}{{- $_ := set $actor "label_selector" $pool.node_labels -}}{{- end -}}
{{- $grace := include "muxfleet.drainSeconds" (dict "data" $data "drain" $fleet.drain "of" "unit") | float64 -}}
{{- $deployment := mergeOverwrite (deepCopy $data.deployments.Unit) (dict "num_replicas" $units "ray_actor_options" $actor "graceful_shutdown_timeout_s" $grace) -}}
{{- $name := printf "%s%s" $data.applications.units.name $pool.name -}}
{{- $application := mergeOverwrite (deepCopy $data.applications.units) (dict "name" $name "args" $shape "deployments" (list $deployment)) -}}
{{- $devices := ternary $pool.mesh_gpus $pool.gpus_per_node (eq $pool.device "cpu") | int64 -}}
{{- $sized := dict "nodes" $pool.nodes "devices_per_node" $devices "mesh_gpus" $pool.mesh_gpus -}}
{{- with $pool.scaling -}}{{- $_ := set $sized "scaling" . -}}{{- end -}}
{{- $_ := set $sizes $pool.name $sized -}}
{{- if gt (default $pool.nodes.min $pool.nodes.max | int64) ($pool.nodes.min | int64) -}}
{{- $isElastic = true -}}
{{- $_ := set $application "external_scaler_enabled" true -}}
{{- end -}}
{{- if and $pool.node_labels (ne $pool.device "cuda") -}}
{{- $_ := set $deployment "max_replicas_per_node" (div $devices ($pool.mesh_gpus | int64)) -}}
{{- end -}}
{{- $applications = append $applications $application -}}
{{- $_ := set $expected $pool.name $units -}}
{{- if $pool.profile -}}{{- $_ := set $profiles $pool.name $pool.profile -}}{{- end -}}
{{- end -}}
{{- $controller := include "muxfleet.arguments" (dict "arguments" $data.controllerArguments "sections" (dict "engine" $fleet.engine "placement" $fleet.placement "gateway" $fleet.gateway "fleet" $fleet) "nulls" false) | fromJson -}}
{{- $controller = merge (dict "models" $fleet.models "expected_units" $expected) $controller -}}
{{- if $profiles -}}{{- $_ := set $controller "profiles" $profiles -}}{{- end -}}
{{- if $isElastic -}}{{- $_ := set $controller "pools" $sizes -}}{{- end -}}
{{- $control := mergeOverwrite (deepCopy $data.deployments.Controller) (dict "num_replicas" 1 "user_config" $controller "graceful_shutdown_timeout_s" $data.controllerGrace) -}}
{{- $arguments := include "muxfleet.arguments" (dict "arguments" $data.gatewayArguments "sections" (dict "gateway" $fleet.gateway "fleet" $fleet) "nulls" true) | fromJson -}}
{{- $grace := include "muxfleet.drainSeconds" (dict "data" $data "drain" $fleet.drain "of" "gateway") | float64 -}}
{{- $gateway := mergeOverwrite (deepCopy $data.deployments.Gateway) (dict "num_replicas" $fleet.gateway.replicas "graceful_shutdown_timeout_s" $grace) -}}
{{- with $fleet.gateway.node_labels -}}{{- $_ := set $gateway.ray_actor_options "label_selector" . -}}{{- end -}}
{{- $applications = append $applications (mergeOverwrite (deepCopy $data.applications.control) (dict "deployments" (list $control))) -}}
{{- $applications = append $applications (mergeOverwrite (deepCopy $data.applications.gateway) (dict "args" $arguments "deployments" (list $gateway))) -}}
{{- merge (dict "http_options" (dict "host" $fleet.gateway.host "port" $fleet.gateway.port) "applications" $applications) $data.config | toYaml -}}
{{- end -}}
