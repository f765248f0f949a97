{{/* At most 47 characters: KubeRay refuses longer names of a RayService. */}}
{{- define "muxfleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "muxfleet.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 47 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "muxfleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 47 | trimSuffix "-" -}}
{{- end -}}

{{/* Of objects. Never of pods: a label that changes with the chart would rebuild the Ray cluster. */}}
{{- define "muxfleet.labels" -}}
{{ include "muxfleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "muxfleet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "muxfleet.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "muxfleet.serviceAccountName" -}}
{{- default (ternary (include "muxfleet.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "muxfleet.image" -}}
{{- include "muxfleet.imageOf" (dict "root" . "image" .Values.image) -}}
{{- end -}}

{{/* Takes root, image. */}}
{{- define "muxfleet.imageOf" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Of one group's pods. The digest of `image` is of that image alone: it goes where a pool names another. Takes root, group. */}}
{{- define "muxfleet.groupImage" -}}
{{- $own := default dict .group.image -}}
{{- $image := .root.Values.image -}}
{{- if or $own.repository $own.tag $own.digest -}}
{{- $image = dict "repository" (default $image.repository $own.repository) "tag" (default $image.tag $own.tag) "digest" $own.digest -}}
{{- end -}}
{{- include "muxfleet.imageOf" (dict "root" .root "image" $image) -}}
{{- end -}}

{{- define "muxfleet.claimName" -}}
{{- default (printf "%s-models" (include "muxfleet.fullname" .)) .Values.modelCache.existingClaim -}}
{{- end -}}

{{/* Whether pods mount the claim to read from it only. */}}
{{- define "muxfleet.readsOnly" -}}
{{- $cache := .Values.modelCache -}}
{{- if and $cache.enabled (or $cache.readOnly (and $cache.existingClaim (eq (toJson $cache.accessModes) "[\"ReadOnlyMany\"]"))) -}}true{{- end -}}
{{- end -}}

{{- define "muxfleet.isRolling" -}}
{{- if eq .Values.upgrade.strategy "RollingUpdate" -}}true{{- end -}}
{{- end -}}

{{/* With what a Job's name has after it at most 63 characters; names that are cut have a digest of the whole. */}}
{{- define "muxfleet.rolloutName" -}}
{{- $name := include "muxfleet.fullname" . -}}
{{- if gt (len $name) 46 -}}
{{- $name = printf "%s-%s" ($name | trunc 37 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name }}-rollout
{{- end -}}

{{- define "muxfleet.isIncremental" -}}
{{- if eq .Values.upgrade.strategy "NewClusterWithIncrementalUpgrade" -}}true{{- end -}}
{{- end -}}

{{/* During incremental upgrades KubeRay keeps one Service per Ray cluster; only the head's has a stable name. */}}
{{- define "muxfleet.gatewayService" -}}
{{- include "muxfleet.fullname" . -}}-{{- ternary "head" "serve" (eq (include "muxfleet.isIncremental" .) "true") -}}-svc
{{- end -}}

{{/* What KubeRay makes the gateways' Service of. */}}
{{- define "muxfleet.serveService" -}}
{{- $port := (include "muxfleet.fleet" . | fromJson).gateway.port | int64 -}}
metadata:
  labels:
    {{- include "muxfleet.selectorLabels" . | nindent 4 }}
  {{- with .Values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .Values.service.type }}
  ports:
    - {name: serve, port: {{ $port }}, targetPort: {{ $port }}, protocol: TCP}
  {{- with .Values.service.spec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The job label that Prometheus gives to the series of this release's gateways. */}}
{{- define "muxfleet.gatewayJob" -}}
{{- printf "%s/%s-gateway" .Release.Namespace (include "muxfleet.fullname" .) -}}
{{- end -}}

{{/* Where the key for `helm test` is; empty without one. */}}
{{- define "muxfleet.testsKey" -}}
{{- if .Values.tests.existingSecret -}}
{{- dict "name" .Values.tests.existingSecret "key" .Values.tests.key | toJson -}}
{{- else if .Values.upgrade.existingSecret -}}
{{- dict "name" .Values.upgrade.existingSecret "key" .Values.upgrade.key | toJson -}}
{{- end -}}
{{- end -}}
