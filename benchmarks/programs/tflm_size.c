/* tflm_size.c: the smallest program that runs the model of tflm_model.cc; its size less that of an
 * empty program is TFLM's and the model's. The arena comes from the caller, and adds nothing. */
#include "tflm_model.h"

int main(int argc, char **argv) {
    return tflm_open((unsigned char *)argv[0], (unsigned long)argc) || tflm_run();
}
