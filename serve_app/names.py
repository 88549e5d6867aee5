"""Names under which the server's parts find each other inside Ray."""

NAMESPACE = "mtp-serve"
APP_NAME = "mtp-serve"
INGRESS, SCHEDULER, POLICY = "Ingress", "Scheduler", "Policy"
MODEL = "Model"
MODEL_NAME = "model-0"
