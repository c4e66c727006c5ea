"""Scratch tensors are reused, and two names never share memory."""

import torch

from app.kernels.cpu.scratch import Scratch


def test_a_smaller_tensor_of_the_same_name_reuses_the_memory():
    scratch = Scratch()
    large = scratch.get("x", (4, 8), torch.float32)
    small = scratch.get("x", (3, 5), torch.float32)
    assert small.shape == (3, 5) and small.is_contiguous()
    assert small.data_ptr() == large.data_ptr()


def test_a_larger_tensor_gets_new_memory_once():
    scratch = Scratch()
    scratch.get("x", (2,), torch.float32)
    grown = scratch.get("x", (100,), torch.float32)
    assert scratch.get("x", (100,), torch.float32).data_ptr() == grown.data_ptr()


def test_names_and_types_do_not_share_memory():
    scratch = Scratch()
    tensors = [scratch.get(name, (4,), dtype) for name in "ab" for dtype in (torch.float32, torch.bfloat16)]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert [int(tensor[0]) for tensor in tensors] == [0, 1, 2, 3]
    assert scratch.like("a", torch.zeros(2, 2), torch.float32).shape == (2, 2)
