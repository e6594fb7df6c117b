/* tflm_model.h: the C functions of tflm_model.cc; those with a result of type int return 0 on
 * success. */
#ifndef TFLM_MODEL_H
#define TFLM_MODEL_H

#ifdef __cplusplus
extern "C" {
#endif

int tflm_open(unsigned char *arena, unsigned long bytes); /* once */
int tflm_run(void);
int tflm_reset(void);                 /* variables begin again */
unsigned long tflm_arena_bytes(void); /* used of the arena, after tflm_open */
unsigned tflm_tensors(int outputs);   /* number of inputs (0) or outputs (1) */
void *tflm_data(int output, unsigned index);
unsigned long tflm_bytes(int output, unsigned index);

#ifdef __cplusplus
}
#endif
#endif
