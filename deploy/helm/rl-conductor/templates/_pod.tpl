{{/* What the pods of the server and of the batch workers share: (list . "server"). */}}
{{- define "rl-conductor.podMetadata" -}}
{{- $component := index . 1 -}}
{{- with index . 0 -}}
labels:
  {{- include "rl-conductor.selector" (list . $component) | nindent 2 }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "rl-conductor.config" . | sha256sum }}
  {{- if not .Values.existingSecret }}
  checksum/secret: {{ .Values.secrets | toJson | sha256sum }}
  {{- end }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "rl-conductor.podSpec" -}}
{{- $component := index . 1 -}}
{{- with index . 0 -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- $drain := include "rl-conductor.intake" (list . "drain_seconds" 30) | int64 }}
terminationGracePeriodSeconds: {{ add .Values.preStopSeconds $drain 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "rl-conductor.selector" (list . $component) | nindent 8 }}
volumes:
  - name: settings
    configMap: {name: {{ include "rl-conductor.fullname" . }}}
  - name: scratch
    emptyDir: {}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The fields of a container that runs rl-conductor, except for its name, arguments and probes. */}}
{{- define "rl-conductor.container" -}}
{{- $resources := index . 1 -}}
{{- with index . 0 -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ include "rl-conductor.secret" . }}}
{{- with .Values.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- $limits := merge (dict) $resources.limits (dict "memory" (include "rl-conductor.memoryLimit" .)) }}
  requests: {{- toYaml $resources.requests | nindent 4 }}
  limits: {{- toYaml $limits | nindent 4 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: settings, mountPath: /etc/rl-conductor, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}
