/* crc_sliced.c: the CRC-32 of crc_small.c, eight bytes at a time, for hosted builds.
 *
 * Slicing by 8 (Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC
 * Generation", IEEE Transactions on Computers 57, 2008): table k holds the effect of a byte on the
 * CRC when k bytes follow. The tables take 8 KiB of the stack and some microseconds to make.
 */
#include "../core/internal.h"

#define SLICES     8
#define POLYNOMIAL 0xedb88320u /* 0x04c11db7, bits reflected */

static void make_tables(uint32_t table[SLICES][256]) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1u) != 0 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < SLICES; k++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
}

static uint32_t word_at(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t kiln_crc32(const unsigned char *data, size_t bytes) {
    uint32_t table[SLICES][256];
    uint32_t crc = UINT32_MAX;
    make_tables(table);
    for (; bytes >= 8; bytes -= 8, data += 8) {
        const uint32_t low = crc ^ word_at(data), high = word_at(data + 4);
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
              table[1][high >> 16 & 255] ^ table[0][high >> 24];
    }
    for (; bytes > 0; bytes--)
        crc = crc >> 8 ^ table[0][(crc ^ *data++) & 255];
    return ~crc;
}
