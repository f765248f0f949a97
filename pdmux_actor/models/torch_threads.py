"""Sets how many threads torch uses on the calling thread."""

import threading

import torch


def use_torch_threads(num_threads: int) -> None:
    """Makes torch work on `num_threads` threads on the calling thread, for good; on threads that begin later, alone.

    torch keeps one number for all threads that have not begun, and a thread takes it on with its first operation, even
    where it has set one of its own before. So this asks first, and leaves 1 behind. A loading thread that took on the
    lanes' number once had an OpenMP team of its own, and libgomp puts every team to sleep after each product while the
    teams of a process have more threads than there are cores (pdmux_actor/executor/lanes.py).
    """
    torch.get_num_threads()
    torch.set_num_threads(num_threads)
    if num_threads != 1:
        others = threading.Thread(target=torch.set_num_threads, args=(1,), name="torch-threads")
        others.start()
        # no deadline: it sets a number
        others.join()
