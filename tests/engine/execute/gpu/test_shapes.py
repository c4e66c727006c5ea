"""Every step fits its shape, and the number of shapes is small."""

from hypothesis import given
from hypothesis import strategies as st

from app.engine.execute.gpu.shapes import StepShape, StepShapes
from tests.engine.execute.gpu.made_grids import grids

limits = st.tuples(st.integers(1, 600), st.integers(8, 9000), st.integers(0, 64))


@given(limits, st.integers(1, 200_000), st.data())
def test_every_step_fits_its_shape(sizes, context, data):
    max_seqs, max_tokens, max_draft = sizes
    max_tokens = max(max_tokens, max_seqs)
    shapes = StepShapes(max_seqs, max_tokens, min(max_seqs + max_draft, max_tokens), context, grids())
    num_rows = data.draw(st.integers(1, max_seqs))
    decode = shapes.decode(num_rows, data.draw(st.integers(1, context)))
    assert decode.is_decode and num_rows <= decode.num_rows == decode.num_logit_rows <= max_seqs
    num_tokens = data.draw(st.integers(1, max_tokens))
    mixed = shapes.mixed(num_tokens, data.draw(st.sampled_from(grids().mixed_programs)))
    assert not mixed.is_decode and num_tokens <= mixed.num_rows <= -(-max_tokens // 8) * 8
    assert min(num_tokens, max_seqs) <= mixed.num_logit_rows <= mixed.num_rows
    graphs = shapes.all()
    assert decode in graphs and (mixed in graphs or num_tokens > 2048)
    assert len(set(graphs)) == len(graphs) and graphs == sorted(graphs, reverse=True)


def test_a_full_server_has_two_graphs_of_each_mixed_size_and_of_each_decode_size_that_is_split_by_context():
    shapes = StepShapes(256, 2048, 256, 131_072, grids()).all()
    mixed = [shape.num_rows for shape in shapes if not shape.is_decode]
    sizes = (2048, 1792, 1536, 1280, 1024, 896, 768, 640, 512, 384, 256, 128, 64)
    assert mixed == [size for size in sizes for _ in range(2)]
    decodes = {}
    for shape in shapes:
        if shape.is_decode:
            decodes.setdefault(shape.num_rows, []).append(shape.num_splits)
    assert decodes == {
        256: [4, 1], 224: [4, 1], 192: [4, 1], 160: [4, 1], 128: [4, 1], 96: [4, 1], 64: [4, 2], 48: [4, 2],
        32: [4], 24: [4], 16: [8], 12: [8], 8: [16], 4: [32], 2: [32], 1: [32],
    }  # fmt: skip


def test_one_long_context_of_few_key_heads_gets_more_splits():
    splits = {heads: grids(8, heads).decode_splits(1, 100_000) for heads in (1, 2, 3, 4, 8)}
    assert splits == {1: 256, 2: 128, 3: 64, 4: 64, 8: 32}
    assert [grids(4, 2).decode_splits(rows, 100_000) for rows in (4, 8, 16, 256)] == [128, 64, 32, 4]


def test_deterministic_splits_are_those_of_the_longest_context_where_there_is_room_for_them():
    shapes = StepShapes(256, 2048, 256, 131_072, grids(deterministic=True))
    decodes = {}
    for shape in shapes.all():
        if shape.is_decode:
            decodes.setdefault(shape.num_rows, []).append(shape.num_splits)
    assert decodes[256] == [8, 1] and decodes[128] == [16, 8, 1] and decodes[1] == [64, 32, 16, 8, 4]
    assert shapes.decode(4, 9000).num_splits == 32 and shapes.decode(256, 2048).num_splits == 1
    assert len(shapes.all()) == 88


def test_shapes_of_more_sequences_are_multiples_of_64():
    shapes = StepShapes(512, 2048, 512, 4096, grids())
    assert shapes.decode(257, 9) == StepShape(320, 320, True, 1) and shapes.decode(512, 9).num_rows == 512


def test_steps_larger_than_any_graph_are_only_padded():
    assert StepShapes(256, 8192, 256, 99, grids()).mixed(5001, 7) == StepShape(5008, 256, False, 7)


def test_the_longest_step_is_warmed_up_too():
    shapes = StepShapes(256, 8192, 256, 99, grids())
    assert set(shapes.warm_ups()) - set(shapes.all()) == {shapes.mixed(8192, grids().mixed_programs[-1])}
    small = StepShapes(4, 16, 4, 99, grids())
    assert small.warm_ups() == small.all()
