"""Words that generated C and C++ cannot use for names of its own."""

# Keywords of C11, C23 and C++20.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
    class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue
    decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
    typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
KEYWORDS = frozenset(_KEYWORDS.split())

# Global symbols that every program, or the runtime, has.
SYMBOLS = frozenset(("main", "memcpy", "memset", "memmove", "kiln"))


def can_name_symbol(name: str) -> bool:
    """Whether a model may have this name, which its global symbols begin with or are."""
    return name not in KEYWORDS and name not in SYMBOLS and not name.startswith("kiln_")
