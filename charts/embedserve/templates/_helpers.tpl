{{- define "embedserve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "embedserve.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "embedserve.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "embedserve.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "embedserve.operatorName" -}}
{{- printf "%s-operator" (include "embedserve.fullname" .) }}
{{- end }}

{{- define "embedserve.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "embedserve.operatorName" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "embedserve.selectorLabels" -}}
app.kubernetes.io/name: {{ include "embedserve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "embedserve.labels" -}}
{{ include "embedserve.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "embedserve.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "embedserve.runtimeImage" -}}
{{- $image := .Values.runtime.image }}
{{- printf "%s:%s" $image.repository (default (printf "%s-cpu" .Chart.AppVersion) $image.tag) }}
{{- end }}

{{- define "embedserve.cudaImage" -}}
{{- $image := .Values.runtime.cudaImage }}
{{- if $image.repository }}
{{- printf "%s:%s" $image.repository (default (printf "%s-cuda" .Chart.AppVersion) $image.tag) }}
{{- end }}
{{- end }}

{{- define "embedserve.adapterName" -}}
{{- printf "%s-metrics-adapter" (include "embedserve.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "embedserve.adapterSelectorLabels" -}}
app.kubernetes.io/name: {{ include "embedserve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: metrics-adapter
{{- end }}

{{- define "embedserve.adapterLabels" -}}
{{ include "embedserve.adapterSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "embedserve.gcLabels" -}}
app.kubernetes.io/name: {{ include "embedserve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: store-gc
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "embedserve.gcSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Who has versions of the custom metrics API beside us, as far as helm can see the cluster. */ -}}
{{- define "embedserve.foreignMetrics" -}}
{{- $found := list }}
{{- range (lookup "apiregistration.k8s.io/v1" "APIService" "" "").items }}
{{- if eq .spec.group "custom.metrics.k8s.io" }}
{{- $service := default dict .spec.service }}
{{- if not (and (eq (default "" $service.namespace) $.Release.Namespace) (eq (default "" $service.name) (include "embedserve.adapterName" $))) }}
{{- $found = append $found (printf "%s/%s (%s)" (default "-" $service.namespace) (default "-" $service.name) .metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- join ", " $found }}
{{- end }}
