# A 32-bit program that has no other word for what it does: 100 000 times it opens and closes /proc/self/stat and sleeps for a
# millisecond, by the system calls of 32-bit programs (arch/x86/entry/syscalls/syscall_32.tbl). Their numbers are those of fstat (5),
# lstat (6) and sync (162) where programs have 64 bits. Goes on until it is killed.
.globl _start
_start:
    mov $100000, %esi
again:
    mov $5, %eax
    mov $name, %ebx
    xor %ecx, %ecx
    xor %edx, %edx
    int $0x80
    mov %eax, %ebx
    mov $6, %eax
    int $0x80
    mov $162, %eax
    mov $span, %ebx
    xor %ecx, %ecx
    int $0x80
    dec %esi
    jnz again
    mov $1, %eax
    xor %ebx, %ebx
    int $0x80
.data
name: .asciz "/proc/self/stat"
span: .long 0, 1000000
