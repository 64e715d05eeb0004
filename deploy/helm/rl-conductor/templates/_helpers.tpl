{{- define "rl-conductor.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of one component: (list . "server"). */}}
{{- define "rl-conductor.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "rl-conductor.labels" -}}
{{- $root := index . 0 -}}
{{ include "rl-conductor.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end -}}

{{- define "rl-conductor.secret" -}}
{{- default (include "rl-conductor.fullname" .) .Values.existingSecret -}}
{{- end -}}

{{- define "rl-conductor.config" -}}
{{- tpl .Values.config . -}}
{{- end -}}

{{/* A number of [intake] in the settings file: (list . "drain_seconds" 30). */}}
{{- define "rl-conductor.intake" -}}
{{- $config := fromToml (include "rl-conductor.config" (index . 0)) -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "config is not valid TOML: %s" $config.Error) -}}
{{- end -}}
{{- $intake := default dict $config.intake -}}
{{- ternary (get $intake (index . 1)) (index . 2) (hasKey $intake (index . 1)) | ceil | int64 -}}
{{- end -}}

{{- define "rl-conductor.storeUrl" -}}
{{- if .Values.postgres.enabled -}}
{{- if .Values.postgres.url -}}
{{- fail "postgres.url names a database of your own: set postgres.enabled=false, too" -}}
{{- end -}}
postgres://conductor@{{ include "rl-conductor.fullname" . }}-postgres/conductor
{{- else -}}
{{- required "replicas share a database: set postgres.url=postgres://USER@HOST/NAME, or postgres.enabled=true" .Values.postgres.url -}}
{{- end -}}
{{- end -}}

{{- define "rl-conductor.memoryLimit" -}}
{{- $bodies := include "rl-conductor.intake" (list . "total_body_bytes" 25165824) | int64 -}}
{{- printf "%dMi" (add 424 (div (add (mul 25 $bodies) 1048575) 1048576)) -}}
{{- end -}}

{{/* The peers of a NetworkPolicy that run rl-conductor. */}}
{{- define "rl-conductor.ownPods" -}}
- podSelector:
    matchLabels: {{- include "rl-conductor.selector" (list . "server") | nindent 6 }}
{{- if .Values.batchWorkers.enabled }}
- podSelector:
    matchLabels: {{- include "rl-conductor.selector" (list . "batch") | nindent 6 }}
{{- end }}
{{- end -}}
