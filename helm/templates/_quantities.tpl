{{/* What a Kubernetes quantity such as 500m or 16Gi means as a number; empty for what is none. */}}
{{- define "muxfleet.quantity" -}}
{{- $text := toString . -}}
{{- if regexMatch "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$" $text -}}
{{- $suffix := regexFind "[a-zA-Z]*$" $text -}}
{{- $factors := dict "" 1.0 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $suffix $text | trimPrefix "+" | float64) (get $factors $suffix) -}}
{{- end -}}
{{- end -}}

{{/* Requests and limits of one container. Takes path, resources. */}}
{{- define "muxfleet.checkResources" -}}
{{- $path := .path -}}
{{- $resources := .resources -}}
{{- range $side := list "requests" "limits" -}}
{{- range $name, $amount := default dict (get $resources $side) -}}
{{- if not (include "muxfleet.quantity" $amount) -}}
{{- $example := "a number" -}}
{{- if eq $name "cpu" -}}{{- $example = "cores such as 4 or 500m" -}}{{- end -}}
{{- if or (has $name (list "memory" "ephemeral-storage")) (hasPrefix "hugepages-" $name) -}}{{- $example = "a size such as 16Gi or 16G" -}}{{- end -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.%s.%s" $path $side $name) "value" $amount "remedy" (printf "no quantity that Kubernetes reads; write %s" $example)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $limits := default dict (get $resources "limits") -}}
{{- range $name, $amount := default dict (get $resources "requests") -}}
{{- if hasKey $limits $name -}}
{{- $limit := get $limits $name -}}
{{- if gt (include "muxfleet.quantity" $amount | float64) (include "muxfleet.quantity" $limit | float64) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.requests.%s" $path $name) "value" $amount "remedy" (printf "above limits.%s (%v); lower it or raise the limit" $name $limit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
