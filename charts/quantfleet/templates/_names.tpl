{{- define "quantfleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quantfleet.operator" -}}
{{- printf "%s-operator" (include "quantfleet.fullname" .) -}}
{{- end -}}

{{- define "quantfleet.server" -}}
{{- printf "%s-server" (include "quantfleet.fullname" .) -}}
{{- end -}}

{{- /* The Secret with the certificate of the status server. */ -}}
{{- define "quantfleet.serverSecret" -}}
{{- default (printf "%s-tls" (include "quantfleet.server" .)) .Values.progress.existingSecret -}}
{{- end -}}

{{- define "quantfleet.serverServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "quantfleet.server" . -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "quantfleet.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "quantfleet.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* A name for an object without a namespace: two releases of one name may live side by side. */ -}}
{{- define "quantfleet.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "quantfleet.operator" .) -}}
{{- end -}}

{{- define "quantfleet.serverClusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "quantfleet.server" .) -}}
{{- end -}}

{{- /* Labels that select the operator's pod; they must never change. */ -}}
{{- define "quantfleet.selector" -}}
app.kubernetes.io/name: quantfleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- /* The same of the status server's pod. */ -}}
{{- define "quantfleet.serverSelector" -}}
app.kubernetes.io/name: quantfleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "quantfleet.serverLabels" -}}
{{ include "quantfleet.serverSelector" . }}
{{ include "quantfleet.commonLabels" . }}
{{- end -}}

{{- /* Not managed-by: quantfleet, which is the label of what the operator itself makes. */ -}}
{{- define "quantfleet.labels" -}}
{{ include "quantfleet.selector" . }}
{{ include "quantfleet.commonLabels" . }}
{{- end -}}

{{- define "quantfleet.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* An image by digest, by tag, or by the chart's appVersion; of (dict "image" IMAGE "root" $). */ -}}
{{- define "quantfleet.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
