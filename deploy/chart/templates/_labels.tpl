{{- define "labels" -}}
app.kubernetes.io/name: solver-sched
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
