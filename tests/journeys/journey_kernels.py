"""In: a server's wish for a kernel. Out: one in which torch and hookviz have been imported.

Must not know: what the kernel is for, and anything about the browser.

Importing torch and hookviz takes longer than most journeys. So one process does it once, and forks
itself for each kernel that a notebook asks for by the name of `WARM`. What the server gives to a
kernel (command, environment, folder, output, a session of its own) this one has as well, and the
server ends and interrupts it as any other. Linux alone has what this takes.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

HERE = Path(__file__).resolve().parent
WARM = "warm"
ADDRESS = "HOOKVIZ_WARM_KERNELS"
"""The environment variable that tells a server where the `WarmProcess` listens."""

# At a fork there is no thread, and no package that looks for its kernel while it is imported.
# matplotlib has its backend from the environment at its import, as it would in a kernel.
PROGRAM = """
import ctypes, json, os, runpy, signal, socket, sys

def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)

end_with_parent()
given = set(os.environ)
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's library starts its threads at its import
import ipykernel.debugger, ipykernel.kernelapp
import matplotlib.backends.backend_agg, numpy, torch, torchvision
import hookviz, hookviz.capture, hookviz.comparison, hookviz.explanation, hookviz.export
import hookviz.models, hookviz.monitoring, hookviz.render, hookviz.run, hookviz.surveys

del os.environ["OPENBLAS_NUM_THREADS"]
set_by_imports = {name: os.environ[name] for name in set(os.environ) - given}
assert not {"ipywidgets", "matplotlib.pyplot"} & set(sys.modules)
assert len(os.listdir("/proc/self/task")) == 1
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    asker = listener.accept()[0]
    message, handles, _, _ = socket.recv_fds(asker, 1 << 20, 2)
    child = os.fork()
    if child == 0:
        break
    watch = os.pidfd_open(child)
    socket.send_fds(asker, [str(child).encode()], [watch])
    for handle in (watch, *handles):
        os.close(handle)
    asker.close()

end_with_parent()
asker.close()
listener.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
os.setsid()
asked = json.loads(message)
os.environ.clear()
os.environ.update(set_by_imports | asked["env"], JPY_PARENT_PID=str(os.getppid()))
os.chdir(asked["cwd"])
for number, handle in enumerate((os.open(os.devnull, os.O_RDONLY), *handles)):
    os.dup2(handle, number)
    os.close(handle)
numpy.random.seed()
torch.default_generator.seed()
sys.argv[:] = asked["command"][2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class WarmProcess:
    """The process whose children are kernels; they end with it.

    Args:
        environment: What it is started in; a kernel has its server's.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hookviz-"))
        self.address = str(self._folder / "kernels")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen()
            number = listener.fileno()
            # Whoever asks while it still imports waits for that.
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(number)],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
            )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)


class ForkedKernel:
    """A kernel's process, as far as a provisioner asks a `subprocess.Popen` about it."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, watch: int) -> None:
        self.pid = pid
        self._watch = watch
        self._ended = False

    def poll(self) -> int | None:
        """None while it lives; its exit status is its parent's to know."""
        if not self._ended and select.select([self._watch], [], [], 0)[0]:
            self._ended = True
            os.close(self._watch)
        return 0 if self._ended else None

    def wait(self) -> int | None:
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._watch, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WarmProvisioner(LocalProvisioner):
    """Starts kernels as children of the `WarmProcess`."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        environment = {name: kwargs["env"][name] for name in kwargs["env"] if name != ADDRESS}
        asked = {"command": cmd, "env": environment, "cwd": str(kwargs.get("cwd") or Path.cwd())}
        self.process = await asyncio.to_thread(self._ask, json.dumps(asked).encode())
        self.pid = self.pgid = self.process.pid
        self.cwd = asked["cwd"]
        return self.connection_info

    @staticmethod
    def _ask(message: bytes) -> ForkedKernel:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
            asker.settimeout(60)
            asker.connect(os.environ[ADDRESS])
            socket.send_fds(asker, [message], [1, 2])
            pid, (watch,), _, _ = socket.recv_fds(asker, 32, 1)
            return ForkedKernel(int(pid), watch)


def offer(data: Path, config: Path) -> None:
    """Write into a server's folders that it has such kernels."""
    spec = get_kernel_dict()
    spec["metadata"] |= {"kernel_provisioner": {"provisioner_name": WARM}}
    folder = data / "kernels" / WARM
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    text = f"import sys\nsys.path.append({str(HERE)!r})\nimport journey_kernels\n"
    text += "journey_kernels.register()\n"
    config.mkdir(parents=True, exist_ok=True)
    (config / "jupyter_server_config.py").write_text(text, encoding="utf-8")


def register() -> None:
    """In a server: what is otherwise done by a package's entry point."""
    where = f"{__name__}:{WarmProvisioner.__name__}"
    entry = EntryPoint(WARM, where, KernelProvisionerFactory.GROUP_NAME)
    KernelProvisionerFactory.provisioners[WARM] = entry
