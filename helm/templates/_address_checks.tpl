{{/* Names and addresses that nothing would answer to: image, Ray's version, Redis, hosts. */}}
{{- define "muxfleet.checkAddresses" -}}
{{- $values := .Values -}}
{{- $name := include "muxfleet.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- include "muxfleet.refuse" (dict "key" "fullnameOverride" "value" $values.fullnameOverride "remedy" (printf "the fleet would be called %s, and KubeRay takes only names of lower-case letters, digits and dashes that begin with a letter; write one here" $name)) -}}
{{- end -}}
{{- include "muxfleet.checkImage" (dict "path" "image" "image" $values.image) -}}
{{- range $name, $pool := $values.pools -}}
{{- with (default dict $pool).image -}}
{{- include "muxfleet.checkImage" (dict "path" (printf "pools.%s.image" $name) "image" (merge (dict "repository" (default $values.image.repository .repository)) .)) -}}
{{- end -}}
{{- end -}}
{{- $oldest := (include "muxfleet.data" . | fromJson).oldestRay -}}
{{- if not (regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+([a-z.-].*)?$" $values.rayVersion) -}}
{{- include "muxfleet.refuse" (dict "key" "rayVersion" "value" $values.rayVersion "remedy" (printf "no version of Ray; write that of the image, %s or newer" $oldest)) -}}
{{- end -}}
{{- if semverCompare (printf "<%s" $oldest) (regexFind "^[0-9]+\\.[0-9]+\\.[0-9]+" $values.rayVersion) -}}
{{- include "muxfleet.refuse" (dict "key" "rayVersion" "value" $values.rayVersion "remedy" (printf "older than muxfleet runs on; build the image with Ray %s or newer and write its version" $oldest)) -}}
{{- end -}}
{{- with $values.redis.address -}}
{{- if not (regexMatch "^(rediss?://)?([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*\\.?|\\[[0-9a-fA-F:.]+\\]):[1-9][0-9]{0,4}$" .) -}}
{{- include "muxfleet.refuse" (dict "key" "redis.address" "value" . "remedy" "no address of a Redis; write host:port, redis://host:port, or rediss://host:port for TLS") -}}
{{- end -}}
{{- $port := regexFind "[0-9]+$" . | int64 -}}
{{- if gt $port 65535 -}}
{{- include "muxfleet.refuse" (dict "key" "redis.address" "value" . "remedy" (printf "port %d is above 65535; write the Redis's own, for example 6379" $port)) -}}
{{- end -}}
{{- end -}}
{{- with $values.ingress.host -}}
{{- include "muxfleet.checkHost" (dict "path" "ingress.host" "host" .) -}}
{{- end -}}
{{- range $i, $tls := $values.ingress.tls -}}
{{- range $j, $host := $tls.hosts -}}
{{- include "muxfleet.checkHost" (dict "path" (printf "ingress.tls[%d].hosts[%d]" $i $j) "host" $host) -}}
{{- end -}}
{{- end -}}
{{- range $i, $host := $values.httpRoute.hostnames -}}
{{- include "muxfleet.checkHost" (dict "path" (printf "httpRoute.hostnames[%d]" $i) "host" $host) -}}
{{- end -}}
{{- end -}}

{{/* Takes path, image (repository and tag). */}}
{{- define "muxfleet.checkImage" -}}
{{- $name := "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*" -}}
{{- $label := "[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?" -}}
{{- if not (regexMatch (printf "^((%s(\\.%s)*|\\[[0-9a-fA-F:]+\\])(:[0-9]+)?/)?%s(/%s)*$" $label $label $name $name) .image.repository) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.repository" .path) "value" .image.repository "remedy" (printf "no repository of images; write registry/name in lower case, without https:// and with the tag in %s.tag" .path)) -}}
{{- end -}}
{{- if and .image.tag (not (regexMatch "^[a-zA-Z0-9_][-.a-zA-Z0-9_]{0,127}$" .image.tag)) -}}
{{- include "muxfleet.refuse" (dict "key" (printf "%s.tag" .path) "value" .image.tag "remedy" "no tag of an image; write letters, digits, dots, dashes and underscores, at most 128") -}}
{{- end -}}
{{- end -}}

{{/* A DNS name, perhaps of all hosts below one. Takes path, host. */}}
{{- define "muxfleet.checkHost" -}}
{{- $isName := regexMatch "^(\\*\\.)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$" .host -}}
{{- if or (not $isName) (regexMatch "^[0-9.]+$" .host) (gt (len .host) 253) -}}
{{- include "muxfleet.refuse" (dict "key" .path "value" .host "remedy" "no host name; write a DNS name in lower case such as llm.example.com or *.example.com, without scheme, port, path and not an address") -}}
{{- end -}}
{{- end -}}
