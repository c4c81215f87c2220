-- Health of an EmbeddingService for Argo CD: resource.customizations.health.embedserve.dev_EmbeddingService
local health = {status = "Progressing", message = "the operator has not looked at it yet"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  health.message = "the operator has not acted upon the last change yet"
  return health
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  if condition.status == "True" or condition.type == "Ready" then
    found[condition.type] = condition
  end
end
local told = found["Stalled"] or found["Reconciling"] or found["Ready"]
if told == nil then
  return health
end
health.message = told.reason .. ": " .. told.message
if found["Stalled"] ~= nil then
  health.status = "Degraded"
elseif found["Reconciling"] ~= nil then
  health.status = "Progressing"
elseif told.reason == "Suspended" then
  health.status = "Suspended"
elseif told.status == "True" then
  health.status = "Healthy"
end
return health
