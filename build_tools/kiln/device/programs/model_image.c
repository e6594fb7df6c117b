/* model_image.c: in place of model.c, a model from an image instead of one that is linked.
 *
 *     -DKILN_HEADER="resnet.h" -DKILN_INTERFACE=resnet_interface
 *     -DKILN_IMAGE_FILE="resnet.img" -DKILN_IMAGE_PLACE_ALIGN=64
 *     -DKILN_PARAMS_FILE_BYTES=RESNET_PARAMS_FILE_BYTES
 *     -DKILN_TYPED_PLAN(model, dims, result, detail)=resnet_plan_loaded((model), (result),
 * (detail))
 *
 * The image is part of the program's code, in flash where the machine has one, and runs from there;
 * with -DKILN_IMAGE_COPIED it runs from a copy in RAM, whose place image_place.c chooses.
 */
#include "kiln_image.h"

#include <stdlib.h>

#include "harness_model.h"

#include KILN_HEADER

#define TEXT(what)  #what
#define VALUE(what) TEXT(what)

__asm__(".section .text.kiln_test_image, \"ax\", %progbits\n"
        ".balign " VALUE(KILN_IMAGE_PLACE_ALIGN) "\n"
                                                 ".hidden kiln_test_image\n"
                                                 ".globl kiln_test_image\n"
                                                 "kiln_test_image:\n"
                                                 ".incbin \"" KILN_IMAGE_FILE "\"\n"
                                                 ".hidden kiln_test_image_end\n"
                                                 ".globl kiln_test_image_end\n"
                                                 "kiln_test_image_end:\n"
                                                 ".balign 16\n"
                                                 ".text\n");

extern const unsigned char kiln_test_image[], kiln_test_image_end[];

/* image_place.c: memory for `bytes` bytes at a multiple of `align`, a copy that can be executed. */
const unsigned char *harness_image_copy(const unsigned char *image, size_t bytes, size_t align);

const kiln_model *harness_model(void) {
    static kiln_image opened;
    const kiln_image_rules rules = {.built = &KILN_INTERFACE};
    const unsigned char *image = kiln_test_image;
    const size_t bytes = (size_t)(kiln_test_image_end - kiln_test_image);
    kiln_image_about about;
    kiln_detail detail;
    char text[256];
    if (opened.model != NULL)
        return opened.model;
    if (kiln_image_read(image, bytes, &about, &detail) == KILN_OK) {
#ifdef KILN_IMAGE_COPIED
        image = harness_image_copy(image, bytes, about.align);
#endif
        void *tables = malloc(about.tables_bytes + KILN_IMAGE_TABLES_ALIGN);
        const size_t past = (size_t)((uintptr_t)tables % KILN_IMAGE_TABLES_ALIGN);
        unsigned char *aligned =
            (unsigned char *)tables + (KILN_IMAGE_TABLES_ALIGN - past) % KILN_IMAGE_TABLES_ALIGN;
        if (tables != NULL && kiln_image_open(&opened, image, bytes, aligned, about.tables_bytes,
                                              &rules, &detail) == KILN_OK)
            return opened.model;
    }
    kiln_detail_text(&detail, text, sizeof text);
    harness_stop(text, kiln_status_name(detail.status));
}

size_t harness_params_bytes(void) {
    return KILN_PARAMS_FILE_BYTES;
}

kiln_status harness_typed_plan(const int64_t *dims, kiln_plan_result *result, kiln_detail *detail) {
    (void)dims; /* of a model without dimensions */
    return KILN_TYPED_PLAN(harness_model(), dims, result, detail);
}
