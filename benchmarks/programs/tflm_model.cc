/* tflm_model.cc: one model in TensorFlow Lite Micro, with the operators that its file uses, behind
 * C functions.
 *
 * TFLM_OPERATORS lists the operators as ADD(Conv2D) ADD(Softmax), TFLM_OPERATOR_COUNT is their
 * number. The file is at tflm_file (tflm_file.S). Interpreter and resolver are static, as in
 * TFLM's own examples.
 */
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/micro/micro_resource_variable.h"
#include "tensorflow/lite/schema/schema_generated.h"
#include "tflm_model.h"

/* Of the C++ library and start-up code: nothing here is deleted, and no program ends by returning.
 */
void operator delete(void *) noexcept {
}
void operator delete(void *, std::size_t) noexcept {
}
extern "C" {
void *__dso_handle;
int __aeabi_atexit(void *, void (*)(void *), void *) {
    return 0;
}
int __cxa_atexit(void (*)(void *), void *, void *) {
    return 0;
}
[[noreturn]] void __cxa_pure_virtual(void) {
    for (;;)
        ;
}
void abort(void) {
    for (;;)
        ;
}
}

extern "C" const unsigned char tflm_file[];

static tflite::MicroInterpreter *interpreter;

int tflm_open(unsigned char *arena, unsigned long bytes) {
    static tflite::MicroMutableOpResolver<TFLM_OPERATOR_COUNT> resolver;
#define ADD(name)                                                                                  \
    if (resolver.Add##name() != kTfLiteOk)                                                         \
        return 1;
    TFLM_OPERATORS
    static tflite::MicroInterpreter made(tflite::GetModel(tflm_file), resolver, arena, bytes);
    interpreter = &made;
    return made.AllocateTensors() != kTfLiteOk;
}

int tflm_run(void) {
    return interpreter->Invoke() != kTfLiteOk;
}

int tflm_reset(void) {
    return interpreter->Reset() != kTfLiteOk;
}

unsigned long tflm_arena_bytes(void) {
    return interpreter->arena_used_bytes();
}

unsigned tflm_tensors(int outputs) {
    return (unsigned)(outputs ? interpreter->outputs_size() : interpreter->inputs_size());
}

static TfLiteTensor *tensor_at(int output, unsigned index) {
    return output ? interpreter->output(index) : interpreter->input(index);
}

void *tflm_data(int output, unsigned index) {
    return tensor_at(output, index)->data.raw;
}

unsigned long tflm_bytes(int output, unsigned index) {
    return tensor_at(output, index)->bytes;
}
