/* sys/auxv.h: facts about the processor, from the kernel. */
#ifndef KILN_ANDROID_SYS_AUXV_H
#define KILN_ANDROID_SYS_AUXV_H

#define AT_PLATFORM 15
#define AT_HWCAP    16
#define AT_HWCAP2   26

unsigned long getauxval(unsigned long type);

#endif
