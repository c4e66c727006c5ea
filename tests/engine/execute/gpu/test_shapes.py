"""Every step fits its shape, and few shapes serve them all."""

from hypothesis import given
from hypothesis import strategies as st

from app.engine.execute.gpu.shapes import StepShape, StepShapes

limits = st.tuples(st.integers(1, 600), st.integers(8, 9000), st.integers(0, 64))


@given(limits, st.data())
def test_every_step_has_room_in_its_shape(sizes, data):
    max_seqs, max_tokens, max_guess = sizes
    max_tokens = max(max_tokens, max_seqs)
    shapes = StepShapes(max_seqs, max_tokens, min(max_seqs + max_guess, max_tokens))
    num_rows = data.draw(st.integers(1, max_seqs))
    decode = shapes.decode(num_rows)
    assert decode.is_decode and num_rows <= decode.num_rows == decode.num_logit_rows <= max_seqs
    num_tokens = data.draw(st.integers(1, max_tokens))
    mixed = shapes.mixed(num_tokens)
    assert not mixed.is_decode and num_tokens <= mixed.num_rows <= -(-max_tokens // 8) * 8
    assert min(num_tokens, max_seqs) <= mixed.num_logit_rows <= mixed.num_rows
    graphs = shapes.all()
    assert decode in graphs and (mixed in graphs or num_tokens > 2048)
    assert len(set(graphs)) == len(graphs) and graphs == sorted(graphs, reverse=True)


def test_a_full_server_has_sixteen_decode_graphs_and_nine_of_mixed_steps():
    shapes = StepShapes(256, 2048, 256).all()
    assert [shape.num_rows for shape in shapes if not shape.is_decode] == [
        2048,
        1536,
        1024,
        768,
        512,
        384,
        256,
        128,
        64,
    ]
    decodes = [256, 224, 192, 160, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1]
    assert [shape.num_rows for shape in shapes if shape.is_decode] == decodes


def test_more_sequences_have_shapes_in_steps_of_64():
    shapes = StepShapes(512, 2048, 512)
    assert shapes.decode(257) == StepShape(320, 320, True) and shapes.decode(512).num_rows == 512


def test_steps_beyond_the_largest_graph_are_only_padded():
    assert StepShapes(256, 8192, 256).mixed(5001) == StepShape(5008, 256, False)


def test_the_longest_step_is_warmed_up_too():
    shapes = StepShapes(256, 8192, 256)
    assert set(shapes.warm_ups()) - set(shapes.all()) == {shapes.mixed(8192)}
    assert StepShapes(4, 16, 4).warm_ups() == StepShapes(4, 16, 4).all()
