"""Reserved words of generated C and C++: keywords, macros, types, and functions of the C library."""

from __future__ import annotations

import re

# Keywords of C11, C23 and C++23.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
    class co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue
    decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
    protected public register reinterpret_cast requires restrict return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
    typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
# Object-like macros: of compilers in gnu modes, and of the headers of C and of POSIX (glibc, musl, newlib,
# macOS). Function-like macros are harmless, as no parenthesis follows the names.
_MACROS = """
    hpux i386 i486 i586 i686 linux m68k mips powerpc ppc
    sparc sun unix vax
    assert complex d_fileno errno h_addr h_errno imaginary math_errhandling noreturn optarg s6_addr s6_addr16
    s6_addr32 sa_handler sa_sigaction sched_priority si_addr si_addr_lsb si_arch si_band si_call_addr si_fd
    si_int si_lower si_overrun si_pid si_pkey si_ptr si_status si_stime si_syscall si_timerid si_uid si_upper
    si_utime si_value sigev_notify_attributes sigev_notify_function st_atime st_ctime st_mtime stderr stdin
    stdout
    NULL INFINITY NAN HUGE_VAL EOF BUFSIZ RAND_MAX FILENAME_MAX SEEK_SET SEEK_CUR SEEK_END I EDOM ERANGE
"""
# Types in the parameter lists of generated headers: a parameter with such a name would hide the type.
_TYPES = """
    int16_t int32_t int64_t int8_t intptr_t max_align_t ptrdiff_t size_t ssize_t uint16_t uint32_t
    uint64_t uint8_t uintptr_t
"""
# Functions of the C library, and common ones of POSIX; those of math.h also exist with the suffixes f and l.
_LIBRARY = """
    abort abs accept access asctime atexit atof atoi atol atoll bind bsearch calloc chdir chmod clearerr
    clock close connect ctime difftime div dup dup2 environ execve exit fclose feof ferror fflush fgetc
    fgets fopen fork fprintf fputc fputs fread free freopen fscanf fseek fstat fsync ftell fwrite getc
    getchar getenv getpid gets gmtime index ioctl isalnum isalpha isatty isblank iscntrl isdigit isgraph
    islower isprint ispunct isspace isupper isxdigit j0 j1 jn kill labs ldiv link listen llabs localtime
    longjmp lseek main malloc mblen memchr memcmp memcpy memmove memset mkdir mktime mmap mprotect munmap
    nanosleep open pause perror pipe poll printf putc putchar puts qsort raise rand read realloc recv
    remove rename rewind rmdir scanf select send setbuf setjmp setlocale setvbuf shutdown signal sleep
    snprintf socket sprintf srand sscanf stat strcat strchr strcmp strcoll strcpy strcspn strdup strerror
    strftime strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtod strtof strtok strtol
    strtoll strtoul strtoull strxfrm symlink sync system time times tmpfile tmpnam tolower toupper umask
    uname ungetc unlink usleep vfprintf vprintf vsnprintf vsprintf wait waitpid write y0 y1 yn
"""
_MATH = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim
    floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint
    lround modf nan nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan
    tanh tgamma trunc
"""
# Variables and functions at file scope in the generated plan, NAME_plan.c.
_PLAN = """
    arenas_on_gpu buckets count_limits derive_sizes dimensions dynamic_bytes functions_on_gpu has_graph
    hash images_on_gpu kernel_names libraries_on_gpu module_of modules_on_gpu no_step no_variants on_gpu
    open_failed open_libraries params_parts regions select_bucket shared_on_gpu special_bucket states
    tensor_bytes variants waits waits_on
"""
_NUMBERED = re.compile(
    r"run_step\d*|params_of_\w+|((step\d*|box|cell)_of|(in|out)put_(tensors|\d+_shape|of))(_.*)?"
)
KEYWORDS = frozenset(_KEYWORDS.split())
RESERVED = KEYWORDS | frozenset(_MACROS.split()) | frozenset(_TYPES.split())
SYMBOLS = frozenset(_LIBRARY.split()) | {name + end for name in _MATH.split() for end in ("", "f", "l")}
PLAN = frozenset(_PLAN.split())


def can_name_variable(name: str) -> bool:
    """Whether a parameter of a generated function may have this name, whatever headers are included."""
    return name not in RESERVED and not name.startswith(("kiln_", "__"))


def can_name_symbol(name: str) -> bool:
    """Whether a global symbol of C and C++ may have this name."""
    return can_name_variable(name) and name not in SYMBOLS and name != "kiln"


def can_name_model(name: str) -> bool:
    """Whether a model may have this name: its global symbol must differ from the names of its plan."""
    return can_name_symbol(name) and name not in PLAN and not _NUMBERED.fullmatch(name)


def too_long(name: str) -> str | None:
    """Why a model cannot have this name; None where it is short enough for the bundle's files.

    The longest, NAMEConfigVersion.cmake, is a member of an archive that any tar can read: 100 characters.
    """
    most = 100 - len("ConfigVersion.cmake")
    if len(name) <= most:
        return None
    return f"a name of {len(name)} characters, at most {most} are allowed: rename the file"
