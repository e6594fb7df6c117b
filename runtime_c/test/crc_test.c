/* crc_test.c: crc_small.c or crc_sliced.c against the definition of the CRC, bit by bit. */
#include "test.h"
#include "test_model.h"

#include "internal.h"

int main(void) {
    static unsigned char data[600];
    CHECK(kiln_crc32((const unsigned char *)"123456789", 9) == 0xcbf43926u);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i * 31 >> 3);
    for (size_t bytes = 0; bytes < 300; bytes++)
        CHECK(kiln_crc32(data + bytes % 9, bytes) == plain_checksum(data + bytes % 9, bytes));
    CHECK(kiln_crc32(data, sizeof data) == plain_checksum(data, sizeof data));
    return test_result();
}
