"""Settings for all tests."""

import torch

torch.set_num_threads(1)  # the tests run in parallel already; more threads on busy cores are many times slower
