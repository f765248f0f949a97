{{/* What all pods of the fleet are made by. */}}
{{- define "muxfleet.rayCluster" -}}
{{- $fleet := include "muxfleet.fleet" . | fromJson -}}
rayVersion: {{ .Values.rayVersion | quote }}
authOptions:
  mode: {{ .Values.rayAuth.mode }}
  {{- with .Values.rayAuth.existingSecret }}
  secretName: {{ . | quote }}
  {{- end }}
{{- if .Values.autoscaling.enabled }}
enableInTreeAutoscaling: true
autoscalerOptions:
  version: v2
  idleTimeoutSeconds: {{ .Values.autoscaling.idleTimeoutSeconds | int64 }}
  upscalingMode: {{ .Values.autoscaling.upscalingMode }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  env:
    - {name: HOME, value: /tmp}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
  resources:
    {{- toYaml .Values.autoscaling.resources | nindent 4 }}
{{- end }}
{{- with .Values.redis.address }}
gcsFaultToleranceOptions:
  redisAddress: {{ . | quote }}
  {{- with $.Values.redis.username }}
  redisUsername: {value: {{ . | quote }}}
  {{- end }}
  {{- with $.Values.redis.existingSecret }}
  redisPassword:
    valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.redis.passwordKey | quote }}}}
  {{- end }}
{{- end }}
headGroupSpec:
  {{- include "muxfleet.headGroup" . | nindent 2 }}
workerGroupSpecs:
  {{- range include "muxfleet.groups" . | fromJsonArray }}
  -
    {{- include "muxfleet.workerGroup" (dict "root" $ "fleet" $fleet "pool" .) | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Another one for each change of what pods and the gateways' Service are made by: the rolling update brings them there. */}}
{{- define "muxfleet.revision" -}}
{{- list (include "muxfleet.rayCluster" . | fromYaml) (include "muxfleet.serveService" . | fromYaml) | toJson | sha256sum | trunc 10 -}}
{{- end -}}
