/* crc_small.c: CRC-32 with a table of 64 bytes, four bits at a time; for devices short of flash.
 *
 * The CRC of Ethernet, zlib and PNG: polynomial 0x04c11db7, bits reflected, begun and ended with
 * ones (0xcbf43926 for "123456789"). It detects every change of up to 32 consecutive bits, and of
 * any two bits among 2^32 - 1; other changes are missed once in 2^32 times. It detects accidental
 * damage, not forgery.
 */
#include "../core/internal.h"

uint32_t kiln_crc32(const unsigned char *data, size_t bytes) {
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                       0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                       0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = UINT32_MAX;
    for (; bytes > 0; bytes--) {
        crc ^= *data++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}
