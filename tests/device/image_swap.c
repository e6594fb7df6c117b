/* image_swap.c: opens images of the model tiny, runs them, and exchanges them while power fails.
 *
 *     image_swap KEY open SKEW FILE ...      a line for each: status, value of the detail
 *     image_swap KEY swap STEP FIRST SECOND THIRD
 *     image_swap KEY load FIRST SECOND
 *
 * KEY: the public key as 64 hexadecimal digits. `open`: the image at an address SKEW bytes past a
 * multiple of 4096. `swap`: version 1 is replaced by 2 in the other of two slots, then 2 by 3;
 * power fails after every STEP bytes that are erased or written, and each time a model must be
 * found. `load`: two threads run version 1, while version 2 is opened and run many times. */
#include "kiln_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef THREADS
#include <pthread.h>
#endif

#include "kiln_verify.h"
#include "tiny.h"

#define MOST   65536
#define SECTOR 512 /* bytes that flash memory erases at once */

const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align);
_Noreturn void harness_stop(const char *what, const char *name);

static uint8_t key[32];
static _Alignas(16) unsigned char tables[2][2048];

void harness_stop(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(3);
}

static int32_t signed_by_us(void *user, const void *image, size_t count) {
    const uint8_t *record = (const uint8_t *)image + count;
    uint64_t release = 0;
    (void)user;
    return kiln_verify(image, count, record, KILN_VERIFY_RECORD_BYTES, NULL, key, &release);
}

/* The file's bytes; the memory is not freed. */
static unsigned char *content_of(const char *path, size_t *bytes) {
    unsigned char *content = malloc(MOST);
    FILE *file = fopen(path, "rb");
    if (content == NULL || file == NULL)
        harness_stop("cannot read", path);
    *bytes = fread(content, 1, MOST, file);
    fclose(file);
    return content;
}

/* Run it by the typed function; 1: the result is right. */
static int runs(const kiln_model *model) {
    _Alignas(TINY_ARENA_ALIGN) unsigned char arena[TINY_ARENA_BYTES];
    const float x[6] = {1, 2, 3, -1, 0.5f, 0}, w[3] = {0.5f, -2, 3};
    float y[6];
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    kiln_plan_result plan;
    kiln_session session;
    if (tiny_plan_loaded(model, &plan, NULL) != KILN_OK || plan.arena_bytes != TINY_ARENA_BYTES ||
        kiln_open(&session, model, &config) != KILN_OK ||
        tiny_run_loaded(&session, x, y) != KILN_OK)
        return 0;
    for (int i = 0; i < 6; i++) {
        const float t = x[i] * w[i % 3] + 1;
        if (y[i] != t * t)
            return 0;
    }
    return 1;
}

static int open_all(int count, char **given) {
    const kiln_image_rules rules = {.built = &tiny_interface, .least = 1, .check = signed_by_us};
    for (int i = 0; i + 1 < count; i += 2) {
        kiln_image image;
        kiln_image_about about;
        kiln_detail detail;
        char text[160];
        size_t bytes, needed = sizeof tables[0];
        const size_t skew = (size_t)atoi(given[i]);
        unsigned char *content = content_of(given[i + 1], &bytes);
        memmove(content + skew, content, bytes);
        const unsigned char *at = harness_image_copy(content, bytes + skew, 4096) + skew;
        if (kiln_image_read(at, bytes, &about, NULL) == KILN_OK)
            needed = about.tables_bytes;
        const kiln_status status =
            kiln_image_open(&image, at, bytes, tables[0], needed, &rules, &detail);
        kiln_detail_text(&detail, text, sizeof text);
        printf("%s %s\n", kiln_status_name(status), text);
        if (status != detail.status || (status == KILN_OK) != (image.model != NULL))
            return 4;
        if (status != KILN_OK)
            continue;
        if (!runs(image.model))
            return 5;
        /* One byte of memory less, memory that is not aligned, none, and the image itself. */
        unsigned char *inside = (unsigned char *)(uintptr_t)at + 64;
        if (kiln_image_open(&image, at, bytes, tables[0], needed - 1, &rules, NULL) !=
                KILN_IMAGE_MEMORY ||
            kiln_image_open(&image, at, bytes, tables[0] + 8, needed, &rules, NULL) !=
                KILN_IMAGE_MEMORY ||
            kiln_image_open(&image, at, bytes, NULL, needed, &rules, NULL) != KILN_IMAGE_MEMORY ||
            kiln_image_open(&image, at, bytes, inside, needed, &rules, NULL) != KILN_OVERLAP)
            return 6;
    }
    return 0;
}

/* Which version is found in the slots; 0: none. */
static uint64_t found_in(const kiln_image_slot *slots, uint64_t least, uint32_t *slot) {
    const kiln_image_rules rules = {
        .built = &tiny_interface, .least = least, .check = signed_by_us};
    kiln_image image;
    const kiln_status status =
        kiln_image_choose(&image, slots, 2, tables[0], sizeof tables[0], &rules, slot, NULL);
    return status == KILN_OK ? image.version : 0;
}

/* Write `next` over a slot's memory; power fails after each `step` bytes. At every moment the slots
 * hold version `old`, and once all is written `old + 1`. Returns the number of moments, 0: a fault.
 */
static int exchange(const kiln_image_slot *slots, unsigned char *spare, const unsigned char *next,
                    size_t bytes, uint64_t old, size_t step) {
    int moments = 0;
    uint32_t slot;
    for (size_t at = 0; at < MOST && at < bytes + SECTOR; at += SECTOR, moments++) {
        memset(spare + at, 0xff, SECTOR);
        if (found_in(slots, old, &slot) != old)
            return 0;
    }
    for (size_t at = 0; at < bytes; at += step, moments++) {
        const size_t now = bytes - at < step ? bytes - at : step;
        memcpy(spare + at, next + at, now);
        if (found_in(slots, old, &slot) != (at + now == bytes ? old + 1 : old))
            return 0;
    }
    /* From now on the older one is not accepted any more. */
    return found_in(slots, old + 1, &slot) == old + 1 && slots[slot].image == spare ? moments : 0;
}

static int swap(size_t step, char **paths) {
    unsigned char *content[3], *memory[2];
    size_t bytes[3];
    for (int i = 0; i < 3; i++)
        content[i] = content_of(paths[i], &bytes[i]);
    kiln_image_slot slots[2];
    for (int i = 0; i < 2; i++) {
        unsigned char *block = malloc(MOST + 4096);
        memory[i] = block + (4096 - (uintptr_t)block % 4096) % 4096;
        slots[i] = (kiln_image_slot){memory[i], MOST};
        memset(memory[i], 0x55, MOST);
    }
    memcpy(memory[0], content[0], bytes[0]);
    const int first = exchange(slots, memory[1], content[1], bytes[1], 1, step);
    const int second = exchange(slots, memory[0], content[2], bytes[2], 2, step);
    printf("%d %d\n", first > 0, second > 0);
    return 0;
}

#ifdef THREADS
static const kiln_model *of_threads;
static int right;

static void *run_many(void *memory) {
    for (int i = 0; i < 20000 && runs(of_threads); i++)
        *(int *)memory = i + 1;
    return NULL;
}

static int load(char **paths) {
    kiln_image first, second;
    size_t bytes;
    const kiln_image_rules rules = {.built = &tiny_interface, .check = signed_by_us};
    unsigned char *content = content_of(paths[0], &bytes);
    const unsigned char *at = harness_image_copy(content, bytes, 4096);
    int done[2] = {0, 0};
    pthread_t threads[2];
    if (kiln_image_open(&first, at, bytes, tables[0], sizeof tables[0], &rules, NULL) != KILN_OK)
        return 4;
    of_threads = first.model;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, run_many, &done[i]);
    content = content_of(paths[1], &bytes);
    for (int i = 0; i < 40; i++) {
        at = harness_image_copy(content, bytes, 4096);
        if (kiln_image_open(&second, at, bytes, tables[1], sizeof tables[1], &rules, NULL) ==
            KILN_OK)
            right += runs(second.model) && second.version == 2;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%d %d %d\n", right, done[0], done[1]);
    return 0;
}
#endif

static uint8_t digit(char letter) {
    return (uint8_t)(letter <= '9' ? letter - '0' : letter - 'a' + 10);
}

int main(int count, char **given) {
    if (count < 4 || strlen(given[1]) != 64)
        return 2;
    for (int i = 0; i < 32; i++)
        key[i] = (uint8_t)(digit(given[1][2 * i]) << 4 | digit(given[1][2 * i + 1]));
    if (strcmp(given[2], "open") == 0)
        return open_all(count - 3, given + 3);
#ifdef THREADS
    if (strcmp(given[2], "load") == 0)
        return load(given + 3);
#endif
    return swap((size_t)atoi(given[3]), given + 4);
}
