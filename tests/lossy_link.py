"""Two network namespaces joined by a link that loses and delays packets for real.

Both ends are TUN devices of this process, which carries packets from one to the other. The kernel
of a virtual machine often lacks ``netem``, and this needs nothing but ``ip``, root and TUN.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time

TUNSETIFF, TUN, NO_HEADER = 0x400454CA, 0x0001, 0x1000
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def why_not():
    """Why this machine cannot make such a link; ``None``: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    found = subprocess.run(["ip", "netns", "add", "hogwild-try"], capture_output=True, text=True)
    if found.returncode:
        return f"no network namespace can be made: {found.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "hogwild-try"], check=True)
    return None


class LossyLink:
    """The namespaces ``names[0]`` and ``names[1]`` with the addresses of :data:`ADDRESSES`."""

    def __init__(self, loss, delay, seed=0):
        self.loss, self.delay, self.random = loss, delay, random.Random(seed)
        self.names = tuple(f"hogwild-{os.getpid()}-{side}" for side in "ab")
        self.carried = self.lost = 0

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.ends = [self._end(stack, side) for side in (0, 1)]
            self.stopped = threading.Event()
            thread = threading.Thread(target=self._carry, daemon=True)
            thread.start()
            stack.callback(thread.join, 2.0)
            stack.callback(self.stopped.set)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _end(self, stack, side):
        name, device = self.names[side], f"hw{os.getpid() % 10**6}{'ab'[side]}"
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, end)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), TUN | NO_HEADER))
        ip("link", "set", device, "netns", name)
        here, there = ADDRESSES[side], ADDRESSES[1 - side]
        within = ["netns", "exec", name, "ip"]
        ip(*within, "addr", "add", here, "peer", there, "dev", device)
        ip(*within, "link", "set", device, "up")
        ip(*within, "link", "set", "lo", "up")
        return end

    def _carry(self):
        travelling, count = [], 0
        while not self.stopped.is_set():
            wait = travelling[0][0] - time.monotonic() if travelling else 0.05
            ready, _, _ = select.select(self.ends, [], [], min(max(wait, 0.0), 0.05))
            for end in ready:
                with contextlib.suppress(BlockingIOError):
                    raw = os.read(end, 65536)
                    count += 1
                    if self.random.random() < self.loss:
                        self.lost += 1
                    else:
                        when = time.monotonic() + self.random.uniform(*self.delay)
                        heapq.heappush(travelling, (when, count, self.ends.index(end), raw))
            while travelling and travelling[0][0] <= time.monotonic():
                _, _, side, raw = heapq.heappop(travelling)
                self.carried += 1
                with contextlib.suppress(OSError):
                    os.write(self.ends[1 - side], raw)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
