/* load_test.c: models that come while a program runs. Arguments: libraries of sums with the factors
 * 2 and 4, one with another interface, and a file that is no library; the first is overwritten. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"
#include "test_model.h"

#define RUNS  2000
#define SWAPS 300
#define USERS 3

static kiln_detail detail;

static int32_t refuse(void *user, const void *bytes, size_t count) {
    *(size_t *)user = count;
    return memcmp(bytes, "\177ELF", 4) == 0 ? 7 : 8;
}

static int32_t accept(void *user, const void *bytes, size_t count) {
    (void)user;
    return bytes == NULL || count == 0;
}

/* Whether a run of the model gives `factor` times what sums computes. */
static bool computes(kiln_session *session, workload *work, float factor) {
    workload_make(work, 2, 16);
    if (kiln_run(session, work->inputs, work->outputs) != KILN_OK)
        return false;
    for (int i = 0; i < 4; i++)
        work->y[i] /= factor;
    return workload_right(work) != 0;
}

static bool opens_and_computes(const kiln_model *model, float factor) {
    static workload work;
    kiln_session session;
    workload_make(&work, 2, 16);
    const bool right =
        kiln_open(&session, model, &work.config) == KILN_OK && computes(&session, &work, factor);
    (void)kiln_close(&session);
    return right;
}

typedef struct offered {
    const kiln_model *model;
    float factor;
} offered;

/* What is offered, and how often it has changed: its place is this number modulo 2. */
static offered models[2];
static atomic_int swaps, wrong, changes, done;

/* A user of the model that is current: changes to another one between two runs. */
static void *use(void *memory) {
    workload *work = memory;
    kiln_session session = {0};
    int mine = -1;
    for (int run = 0; run < RUNS || atomic_load(&done) == 0; run++) {
        /* By number: a user that sleeps while another model comes and goes notices both. */
        const int now = atomic_load(&swaps);
        if (now != mine) {
            if (mine >= 0)
                (void)kiln_close(&session);
            workload_make(work, 2, 16);
            if (kiln_open(&session, models[now % 2].model, &work->config) != KILN_OK)
                atomic_fetch_add(&wrong, 1);
            mine = now;
            atomic_fetch_add(&changes, 1);
        }
        if (!computes(&session, work, models[mine % 2].factor))
            atomic_fetch_add(&wrong, 1);
    }
    (void)kiln_close(&session);
    return NULL;
}

static void test_swapped_under_load(const kiln_model *one, const kiln_model *two) {
    static workload works[USERS];
    pthread_t users[USERS];
    models[0] = (offered){one, 2.0f};
    models[1] = (offered){two, 4.0f};
    for (int i = 0; i < USERS; i++)
        CHECK(pthread_create(&users[i], NULL, use, &works[i]) == 0);
    for (int swap = 1; swap <= SWAPS; swap++) {
        /* Each change is seen by a user at least, whatever the speed of this machine. */
        const int before = atomic_load(&changes);
        atomic_store(&swaps, swap);
        while (atomic_load(&changes) == before)
            (void)sched_yield();
    }
    atomic_store(&done, 1);
    for (int i = 0; i < USERS; i++)
        CHECK(pthread_join(users[i], NULL) == 0);
    CHECK(atomic_load(&wrong) == 0 && atomic_load(&changes) >= SWAPS);
}

static void test_refused(char **files) {
    kiln_loaded loaded;
    char text[200];
    size_t seen = 0;
    CHECK(kiln_load(&loaded, files[0], &sums, refuse, &seen, &detail) == KILN_LOAD_REFUSED);
    CHECK(detail.value == 7 && seen > 1000 && loaded.model == NULL);
    CHECK(getenv("LOADED") == NULL); /* none of its code has run */
    CHECK(kiln_load(&loaded, files[3], &sums, NULL, NULL, &detail) == KILN_SYSTEM_LIBRARY);
    CHECK(kiln_detail_text(&detail, text, sizeof text) > 10 && detail.name != NULL);
    CHECK(detail.name != NULL && strstr(detail.name, "/proc/") == NULL); /* the copy's own name */
    for (int cut = 4; cut < 7;
         cut++) { /* files that end within the header, or within what it names */
        CHECK(kiln_load(&loaded, files[cut], &sums, NULL, NULL, &detail) == KILN_SYSTEM_LIBRARY);
        CHECK(loaded.model == NULL);
    }
    CHECK(detail.name != NULL && strcmp(detail.name, "the file is cut short") == 0);
    kiln_model other = sums; /* a library that can be loaded, but has no such model */
    other.name = "no_such_model";
    CHECK(kiln_load(&loaded, files[0], &other, NULL, NULL, &detail) == KILN_SYSTEM_LIBRARY);
    CHECK(detail.name == other.name);
    CHECK(kiln_load(&loaded, "absent", &sums, NULL, NULL, &detail) == KILN_SYSTEM_FILE);
    CHECK(errno == ENOENT && detail.name != NULL && strcmp(detail.name, "absent") == 0);
    CHECK(kiln_load(&loaded, "/", &sums, NULL, NULL, NULL) == KILN_SYSTEM_FILE && errno == EISDIR);
    CHECK(kiln_load(&loaded, "/dev/null", &sums, accept, NULL, NULL) == KILN_SYSTEM_FILE);
    CHECK(kiln_load(NULL, files[0], &sums, NULL, NULL, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_load(&loaded, NULL, &sums, NULL, NULL, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_load(&loaded, files[0], NULL, NULL, NULL, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_load(&loaded, files[2], &sums, NULL, NULL, &detail) == KILN_OTHER_NAME);
    CHECK(loaded.model == NULL && loaded.library == NULL && loaded.file == -1);
    kiln_model renamed = sums;
    renamed.name = "absent_model";
    CHECK(kiln_load(&loaded, files[0], &renamed, NULL, NULL, NULL) == KILN_SYSTEM_LIBRARY);
    kiln_unload(&loaded); /* and nothing happens */
    kiln_unload(NULL);
}

int main(int count, char **arguments) {
    kiln_loaded one, two, again;
    if (count != 8)
        return 2;
    char **files = arguments + 1;
    test_refused(files);
    CHECK(kiln_load(&one, files[0], &sums, accept, NULL, &detail) == KILN_OK);
    CHECK(kiln_load(&two, files[1], &sums, NULL, NULL, NULL) == KILN_OK);
    CHECK(one.model != two.model && one.model != &sums);
    CHECK(opens_and_computes(&sums, 1.0f));
    CHECK(opens_and_computes(one.model, 2.0f) && opens_and_computes(two.model, 4.0f));
    FILE *file = fopen(files[0], "w"); /* the file is gone, the model is not */
    CHECK(file != NULL && fclose(file) == 0);
    CHECK(kiln_load(&again, files[0], &sums, NULL, NULL, NULL) == KILN_SYSTEM_LIBRARY);
    test_swapped_under_load(one.model, two.model);
    kiln_unload(&one);
    CHECK(opens_and_computes(two.model, 4.0f));
    CHECK(kiln_load(&one, files[1], &sums, NULL, NULL, NULL) == KILN_OK); /* a second time */
    CHECK(opens_and_computes(one.model, 4.0f));
    kiln_unload(&two);
    CHECK(opens_and_computes(one.model, 4.0f));
    kiln_unload(&one);
    return test_result();
}
