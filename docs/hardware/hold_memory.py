"""Holds GPU memory until its standard input ends: `hold_memory.py BYTES`, on the first GPU of `CUDA_VISIBLE_DEVICES`.

Needs only the driver's libcuda. Prints `held` once the memory is taken, or one sentence and ends with 1.
"""

import ctypes
import sys


class CudaError(Exception):
    """A call to libcuda failed."""


def hold(size: int) -> None:
    """Take memory in the primary context, as an engine would, and write to all of it."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(str(error)) from None

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            raise CudaError(f"{name} returned {status}")

    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
    call("cuCtxSynchronize")


def main() -> int:
    """Hold as much memory as the first argument says."""
    try:
        hold(int(sys.argv[1]))
    except CudaError as error:
        print(error)
        return 1
    print("held", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
