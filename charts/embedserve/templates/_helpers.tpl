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

{{- /* User and group of all pods: a number, or "platform". */ -}}
{{- define "embedserve.user" -}}
{{- $given := toString .Values.runAs }}
{{- if eq $given "auto" }}
{{- ternary "platform" "65532" (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
{{- else if eq $given "platform" }}
{{- $given }}
{{- else }}
{{- int64 .Values.runAs }}
{{- end }}
{{- end }}

{{- define "embedserve.podSecurity" -}}
runAsNonRoot: true
{{- $user := include "embedserve.user" . }}
{{- if ne $user "platform" }}
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
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

{{- /* Labels on the roles that let the operator serve: by them another release sees which services are taken. */ -}}
{{- define "embedserve.scopeLabels" -}}
embedserve.dev/serves: "true"
embedserve.dev/operator-class: {{ .Values.watch.operatorClass | quote }}
{{- end }}

{{- /* Other releases that serve the same resources, as far as helm can see the cluster. Who may only install into a
namespace may not list the roles of all. */ -}}
{{- define "embedserve.rivals" -}}
{{- $own := printf "%s/%s" .Release.Namespace .Release.Name }}
{{- $roles := list }}
{{- if or .Values.watch.nodes (not .Values.watch.namespaces) }}
{{- $roles = concat $roles (default list (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items) }}
{{- end }}
{{- range default (list "") .Values.watch.namespaces }}
{{- $roles = concat $roles (default list (lookup "rbac.authorization.k8s.io/v1" "Role" . "").items) }}
{{- end }}
{{- $found := list }}
{{- range $roles }}
{{- $labels := default dict .metadata.labels }}
{{- if and (eq (get $labels "embedserve.dev/serves") "true") (eq (get $labels "embedserve.dev/operator-class") $.Values.watch.operatorClass) }}
{{- $annotations := default dict .metadata.annotations }}
{{- $other := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") }}
{{- if and (ne $other $own) (ne $other "/") }}
{{- $found = append $found $other }}
{{- end }}
{{- end }}
{{- end }}
{{- join ", " (uniq $found) }}
{{- end }}
