"""A Triton kernel: Triton reads its source from a file of its own."""
import triton
import triton.language as language


@triton.jit
def add(a, b, out, count, BLOCK: language.constexpr):
    places = language.program_id(0) * BLOCK + language.arange(0, BLOCK)
    inside = places < count
    language.store(out + places, language.load(a + places, mask=inside) + language.load(b + places, mask=inside), mask=inside)
