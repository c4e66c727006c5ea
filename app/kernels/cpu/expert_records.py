"""The records of mixtures of experts, field by field as in native/record.h; see records.py."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

from app.checkpoint.spec import RouterScores
from app.kernels.cpu.records import Matrix, Quantized

KINDS_OF_SCORES = {RouterScores.SOFTMAX: 0, RouterScores.SIGMOID: 1, RouterScores.CHOSEN_SOFTMAX: 2}


class Route(ctypes.Structure):
    """Which experts compute each token, and the tokens of each expert, see native/record.h."""

    _fields_ = (
        ("products", Matrix),
        ("correction", c_void_p),
        ("experts", c_void_p),
        ("scores", c_void_p),
        ("shared", c_void_p),
        ("pairs", c_void_p),
        ("places", c_void_p),
        ("tokens", c_void_p),
        ("starts", c_void_p),
        ("count", c_int32),
        ("per_token", c_int32),
        ("num_groups", c_int32),
        ("groups_per_token", c_int32),
        ("kind", c_int32),
        ("is_normalized", c_int32),
        ("has_shared_gate", c_int32),
        ("has_rest", c_int32),
        ("scale", c_float),
        ("padding", c_int32),
    )


class Experts(ctypes.Structure):
    """A product of the rows of each expert with its matrix."""

    _fields_ = (
        ("weights", c_void_p),
        ("starts", c_void_p),
        ("x", Matrix),
        ("quantized", Quantized),
        ("out", Matrix),
        ("count", c_int32),
        ("epilogue", c_int32),
    )


class Combine(ctypes.Structure):
    """The sum of the shared result and those of a token's experts."""

    _fields_ = (
        ("products", Matrix),
        ("places", c_void_p),
        ("scores", c_void_p),
        ("factors", c_void_p),
        ("shared", Matrix),
        ("out", Matrix),
        ("width", c_int64),
        ("per_token", c_int64),
    )
