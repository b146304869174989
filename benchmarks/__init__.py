"""Scripts that measure hookviz: run each as ``python -m benchmarks.NAME``."""

import os

# Torch's profiler, which benchmarks.capture counts memory with, otherwise logs its own start and
# end. It reads this when torch is imported, which is later.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
