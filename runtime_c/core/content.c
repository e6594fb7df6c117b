/* content.c: check whether an input has the content that a special case of the plan requires.
 *
 * Elements are compared as bytes, so -0.0 does not equal the zero of a plan; the general steps,
 * which are correct for every content, then run. An input without elements is never special.
 */
#include "internal.h"

/* Blocks without a branch inside, which compilers turn into vector instructions. */
static bool same(const unsigned char *a, const unsigned char *b, size_t bytes) {
    enum {
        BLOCK = 32
    };
    for (; bytes >= BLOCK; a += BLOCK, b += BLOCK, bytes -= BLOCK) {
        unsigned char differ = 0;
        for (size_t i = 0; i < BLOCK; i++)
            differ |= (unsigned char)(a[i] ^ b[i]);
        if (differ != 0)
            return false;
    }
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

int32_t kiln_input_filled(const kiln_frame *frame, const kiln_tensor *about, uint32_t index,
                          const unsigned char *element) {
    const size_t bytes = kiln_tensor_shape(about, frame->dims, NULL);
    const size_t width = (size_t)(about->dtype.bits + 7u) / 8u;
    if (bytes < width)
        return 0;
    const unsigned char *data = kiln_at_input(frame, index, 0);
    /* All elements are equal when each is equal to the next. */
    return same(data, element, width) && same(data, data + width, bytes - width);
}

int32_t kiln_input_equals(const kiln_frame *frame, const kiln_tensor *about, uint32_t index,
                          size_t offset, size_t bytes) {
    if (bytes == 0 || kiln_tensor_shape(about, frame->dims, NULL) != bytes)
        return 0;
    return same(kiln_at_input(frame, index, 0), kiln_at_params(frame, offset), bytes);
}
