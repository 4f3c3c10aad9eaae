"""`xla-run --k8s`: a JobSet whose pods run `xla-run --nnodes`, made and followed through kubectl.

Comes in: a command and how many pods of what kind. Goes out: a manifest, or the lines of pod 0 and
the job's exit code. Kubernetes places the pods and starts them again; nothing here schedules.
`manifest`, `plan`, `sight` and `ending` are pure; `kubectl` is the one place that starts it.
"""
